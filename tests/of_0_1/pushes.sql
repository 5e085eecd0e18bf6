BEGIN TRANSACTION;
CREATE TABLE landonce_journal (
	pipeline TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	at TEXT NOT NULL, 
	action TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (pipeline, seq)
);
INSERT INTO "landonce_journal" VALUES('pushes',1,'2026-11-16T17:00:00Z','create','begins at 10 and 0');
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
INSERT INTO "landonce_pipeline" VALUES('pushes','driver-of-0.1',1,'driver-of-0.1',3,'cluster-1','[["clicks","kafka-topic-id-1"]]','[]','[]','{"batch":1,"fingerprint":"fingerprint-of-0.1","deadline":1763312400000,"kind":"deliver","letters":"/var/lib/landonce/dead","blocks":[{"table":"function","shard":"","generation":0,"number":0,"ranges":[["clicks",0,10,14]]},{"table":"function","shard":"","generation":0,"number":1,"ranges":[["clicks",1,0,4]]}]}',1,0,0,0);
CREATE TABLE landonce_position (
	pipeline TEXT NOT NULL, 
	topic TEXT NOT NULL, 
	partition INTEGER NOT NULL, 
	first BIGINT NOT NULL, 
	committed BIGINT NOT NULL, 
	PRIMARY KEY (pipeline, topic, partition)
);
INSERT INTO "landonce_position" VALUES('pushes','clicks',0,10,10);
INSERT INTO "landonce_position" VALUES('pushes','clicks',1,0,0);
CREATE TABLE landonce_push (
	pipeline TEXT NOT NULL, 
	batch BIGINT NOT NULL, 
	number INTEGER NOT NULL, 
	epoch BIGINT NOT NULL, 
	owner TEXT NOT NULL, 
	state TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	nonce TEXT NOT NULL, 
	claimed_at BIGINT NOT NULL, 
	wait BIGINT NOT NULL, 
	receipt TEXT, 
	PRIMARY KEY (pipeline, batch, number)
);
INSERT INTO "landonce_push" VALUES('pushes',1,0,1,'driver-of-0.1','AFTER',1,'nonce-1',1795120208049,1000,'{"read":4,"landed":4,"filtered":0,"dead_lettered":0,"dead_letters":"","refused":"","bytes_read":0}');
INSERT INTO "landonce_push" VALUES('pushes',1,1,1,'driver-of-0.1','CLAIMED',1,'nonce-2',1795120208086,1000,NULL);
CREATE TABLE landonce_schema (
	only INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	PRIMARY KEY (only)
);
INSERT INTO "landonce_schema" VALUES(1,2);
COMMIT;
