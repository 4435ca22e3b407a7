BEGIN TRANSACTION;
CREATE TABLE pykafka_loads (
	group_id VARCHAR(200) NOT NULL, 
	sequence BIGINT NOT NULL, 
	load_id VARCHAR(255) NOT NULL, 
	record TEXT NOT NULL, 
	PRIMARY KEY (group_id, sequence)
);
INSERT INTO "pykafka_loads" VALUES('group-1',1,'group-1-000001-3b1e4d5f','{"version": 1, "load_id": "group-1-000001-3b1e4d5f", "output": "sqlite:////tmp/b4/oldwork/1.db#rows", "format": "sql", "offsets": "table", "created_ms": 0, "ranges": [{"topic": "t", "partition": 0, "start": 0, "end": 3, "stored": null, "rows": 3, "bad": null}, {"topic": "t", "partition": 1, "start": 0, "end": 3, "stored": null, "rows": 3, "bad": null}], "rerun_of": null, "files": [], "rewind": null, "columns": [], "partition_by": [], "topic_ids": {}, "reading": null, "origin": null, "positions": {}, "dead_letters": [], "about": null, "upsert": null, "rows": 6, "bad_rows": null}');
INSERT INTO "pykafka_loads" VALUES('group-1',2,'group-1-000002-d160d983','{"version": 1, "load_id": "group-1-000002-d160d983", "output": "sqlite:////tmp/b4/oldwork/1.db#rows", "format": "sql", "offsets": "table", "created_ms": 0, "ranges": [{"topic": "t", "partition": 0, "start": 3, "end": 6, "stored": 3, "rows": 3, "bad": null}, {"topic": "t", "partition": 1, "start": 3, "end": 6, "stored": 3, "rows": 3, "bad": null}], "rerun_of": null, "files": [], "rewind": null, "columns": [], "partition_by": [], "topic_ids": {}, "reading": null, "origin": null, "positions": {}, "dead_letters": [], "about": null, "upsert": null, "rows": 6, "bad_rows": null}');
CREATE TABLE pykafka_offsets (
	group_id VARCHAR(200) NOT NULL, 
	topic VARCHAR(249) NOT NULL, 
	partition INTEGER NOT NULL, 
	next_offset BIGINT NOT NULL, 
	PRIMARY KEY (group_id, topic, partition)
);
INSERT INTO "pykafka_offsets" VALUES('group-1','t',0,6);
INSERT INTO "pykafka_offsets" VALUES('group-1','t',1,6);
CREATE TABLE rows (
	value BLOB, 
	topic TEXT, 
	partition INTEGER, 
	"offset" BIGINT, 
	timestamp DATETIME, 
	load VARCHAR(255)
);
INSERT INTO "rows" VALUES(X'742D302D30','t',0,0,'2023-11-14 22:13:20.000000','group-1-000001-3b1e4d5f');
INSERT INTO "rows" VALUES(X'742D302D31','t',0,1,'2023-11-14 22:13:20.000001','group-1-000001-3b1e4d5f');
INSERT INTO "rows" VALUES(X'742D302D32','t',0,2,'2023-11-14 22:13:20.000002','group-1-000001-3b1e4d5f');
INSERT INTO "rows" VALUES(X'742D312D30','t',1,0,'2023-11-14 22:13:20.000000','group-1-000001-3b1e4d5f');
INSERT INTO "rows" VALUES(X'742D312D31','t',1,1,'2023-11-14 22:13:20.000001','group-1-000001-3b1e4d5f');
INSERT INTO "rows" VALUES(X'742D312D32','t',1,2,'2023-11-14 22:13:20.000002','group-1-000001-3b1e4d5f');
INSERT INTO "rows" VALUES(X'742D302D33','t',0,3,'2023-11-14 22:13:20.000003','group-1-000002-d160d983');
INSERT INTO "rows" VALUES(X'742D302D34','t',0,4,'2023-11-14 22:13:20.000004','group-1-000002-d160d983');
INSERT INTO "rows" VALUES(X'742D302D35','t',0,5,'2023-11-14 22:13:20.000005','group-1-000002-d160d983');
INSERT INTO "rows" VALUES(X'742D312D33','t',1,3,'2023-11-14 22:13:20.000003','group-1-000002-d160d983');
INSERT INTO "rows" VALUES(X'742D312D34','t',1,4,'2023-11-14 22:13:20.000004','group-1-000002-d160d983');
INSERT INTO "rows" VALUES(X'742D312D35','t',1,5,'2023-11-14 22:13:20.000005','group-1-000002-d160d983');
COMMIT;