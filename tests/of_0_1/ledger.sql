BEGIN TRANSACTION;
CREATE TABLE landonce_journal (
	pipeline TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	at TEXT NOT NULL, 
	action TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (pipeline, seq)
);
INSERT INTO "landonce_journal" VALUES('stopped',1,'2026-11-16T17:00:00Z','create','begins at 10 and 0');
INSERT INTO "landonce_journal" VALUES('stopped',2,'2026-11-16T17:05:00Z','rebase','by hand');
INSERT INTO "landonce_journal" VALUES('killed',1,'2026-11-16T17:00:00Z','create','begins at 10 and 0');
CREATE TABLE landonce_pipeline (
	pipeline TEXT NOT NULL, 
	lineage TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	owner TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	cluster_id TEXT NOT NULL, 
	topic_ids TEXT NOT NULL, 
	labels TEXT NOT NULL, 
	tables TEXT NOT NULL, 
	pending TEXT, 
	batch BIGINT NOT NULL, 
	landed BIGINT NOT NULL, 
	dead_lettered BIGINT NOT NULL, 
	filtered BIGINT NOT NULL, 
	PRIMARY KEY (pipeline)
);
INSERT INTO "landonce_pipeline" VALUES('stopped','driver-of-0.1',1,'driver-of-0.1',5,'cluster-1','[["clicks","kafka-topic-id-1"]]','[]','[["events","uuid-of-events",1]]',NULL,1,6,1,1);
INSERT INTO "landonce_pipeline" VALUES('killed','driver-of-0.1',1,'driver-of-0.1',5,'cluster-1','[["clicks","kafka-topic-id-1"]]','[]','[]','{"batch":2,"fingerprint":"fingerprint-of-0.1","deadline":1763312400000,"kind":"deliver","letters":"/var/lib/landonce/dead","blocks":[{"table":"events","shard":"","generation":0,"number":0,"ranges":[["clicks",0,14,18]]},{"table":"events","shard":"","generation":0,"number":1,"ranges":[["clicks",1,4,8]]}]}',2,6,1,1);
CREATE TABLE landonce_position (
	pipeline TEXT NOT NULL, 
	topic TEXT NOT NULL, 
	partition INTEGER NOT NULL, 
	first BIGINT NOT NULL, 
	committed BIGINT NOT NULL, 
	PRIMARY KEY (pipeline, topic, partition)
);
INSERT INTO "landonce_position" VALUES('stopped','clicks',0,10,14);
INSERT INTO "landonce_position" VALUES('stopped','clicks',1,0,4);
INSERT INTO "landonce_position" VALUES('killed','clicks',0,10,14);
INSERT INTO "landonce_position" VALUES('killed','clicks',1,0,4);
CREATE TABLE landonce_schema (
	only INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	PRIMARY KEY (only)
);
INSERT INTO "landonce_schema" VALUES(1,2);
COMMIT;
