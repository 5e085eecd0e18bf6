BEGIN TRANSACTION;
CREATE TABLE events (
	_topic TEXT NOT NULL, 
	_partition INTEGER NOT NULL, 
	_offset BIGINT NOT NULL, 
	id BIGINT NOT NULL, 
	word TEXT
);
INSERT INTO "events" VALUES('clicks',0,10,1,'word 1');
INSERT INTO "events" VALUES('clicks',0,11,2,NULL);
INSERT INTO "events" VALUES('clicks',0,12,3,'word 3');
INSERT INTO "events" VALUES('clicks',0,13,4,NULL);
INSERT INTO "events" VALUES('clicks',1,0,5,'word 5');
INSERT INTO "events" VALUES('clicks',1,1,6,NULL);
INSERT INTO "events" VALUES('clicks',1,2,7,'word 7');
INSERT INTO "events" VALUES('clicks',0,14,8,NULL);
INSERT INTO "events" VALUES('clicks',0,15,9,'word 9');
INSERT INTO "events" VALUES('clicks',0,16,10,NULL);
INSERT INTO "events" VALUES('clicks',0,17,11,'word 11');
CREATE TABLE landonce_block (
	pipeline TEXT NOT NULL, 
	batch BIGINT NOT NULL, 
	number INTEGER NOT NULL, 
	epoch BIGINT NOT NULL, 
	owner TEXT NOT NULL, 
	state TEXT NOT NULL, 
	receipt TEXT, 
	PRIMARY KEY (pipeline, batch, number)
);
INSERT INTO "landonce_block" VALUES('payments',2,0,1,'driver-of-0.1','AFTER','{"read":4,"landed":4,"filtered":0,"dead_lettered":0,"dead_letters":"","refused":"","bytes_read":0}');
INSERT INTO "landonce_block" VALUES('payments',2,1,1,'driver-of-0.1','BEFORE',NULL);
CREATE TABLE landonce_journal (
	pipeline TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	at TEXT NOT NULL, 
	action TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (pipeline, seq)
);
INSERT INTO "landonce_journal" VALUES('payments',1,'2026-11-16T17:00:00Z','create','begins at 10 and 0');
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
INSERT INTO "landonce_pipeline" VALUES('payments','driver-of-0.1',1,'driver-of-0.1',5,'cluster-1','[["clicks","kafka-topic-id-1"]]','[]','[["events","schema 7",2]]','{"batch":2,"fingerprint":"fingerprint-of-0.1","deadline":1763312400000,"kind":"deliver","letters":"/var/lib/landonce/dead","blocks":[{"table":"events","shard":"","generation":0,"number":0,"ranges":[["clicks",0,14,18]]},{"table":"events","shard":"","generation":0,"number":1,"ranges":[["clicks",1,4,8]]}]}',2,7,0,1);
CREATE TABLE landonce_position (
	pipeline TEXT NOT NULL, 
	topic TEXT NOT NULL, 
	partition INTEGER NOT NULL, 
	first BIGINT NOT NULL, 
	committed BIGINT NOT NULL, 
	PRIMARY KEY (pipeline, topic, partition)
);
INSERT INTO "landonce_position" VALUES('payments','clicks',0,10,14);
INSERT INTO "landonce_position" VALUES('payments','clicks',1,0,4);
CREATE TABLE landonce_schema (
	only INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	PRIMARY KEY (only)
);
INSERT INTO "landonce_schema" VALUES(1,2);
CREATE UNIQUE INDEX events_coordinates ON events (_topic, _partition, _offset);
COMMIT;
