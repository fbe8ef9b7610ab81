BEGIN TRANSACTION;
CREATE TABLE labelwise_about (
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "labelwise_about" VALUES('version','1');
INSERT INTO "labelwise_about" VALUES('people','2');
CREATE TABLE labelwise_event (
	seq INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	who TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	"row" INTEGER, 
	round INTEGER, 
	value TEXT, 
	seconds FLOAT, 
	note TEXT NOT NULL, 
	strategy TEXT NOT NULL, 
	score FLOAT, 
	model TEXT NOT NULL, 
	undoes INTEGER, 
	token TEXT NOT NULL, 
	PRIMARY KEY (seq), 
	FOREIGN KEY("row") REFERENCES labelwise_item ("row"), 
	FOREIGN KEY(undoes) REFERENCES labelwise_event (seq), 
	UNIQUE (token)
);
INSERT INTO "labelwise_event" VALUES(1,1794842433.27402,'ann','class',NULL,NULL,'cat',NULL,'','',NULL,'',NULL,'ORKfs4ohwgIe631xaD7oBw');
INSERT INTO "labelwise_event" VALUES(2,1.79484243328624272343e+09,'ann','class',NULL,NULL,'dog',NULL,'','',NULL,'',NULL,'w1xPcgiXAA8wJdQog-3yng');
INSERT INTO "labelwise_event" VALUES(3,1.79484243334120965006e+09,'ann','label',0,1,'cat',2.5,'','typiclust',0.25,'',NULL,'5qkbyvb6ecRM7riuPY_7cQ');
INSERT INTO "labelwise_event" VALUES(4,1.79484243335464549061e+09,'bob','label',0,1,'dog',1.5,'not sure it''s one','typiclust',0.25,'',NULL,'p5tWjpY2uujYJvqrVeMt7w');
INSERT INTO "labelwise_event" VALUES(5,1.79484243336769628521e+09,'ann','skip',1,1,NULL,0.5,'','typiclust',NULL,'',NULL,'6jitiy7VI0daoPLuk-ev_A');
INSERT INTO "labelwise_event" VALUES(6,1.79484243338701963425e+09,'ann','undo',1,1,NULL,NULL,'','typiclust',NULL,'',5,'7yRkLseWKWDpZ80eCBTKFA');
INSERT INTO "labelwise_event" VALUES(7,1.79484243340304398537e+09,'ann','unsure',1,1,NULL,4.0,'','typiclust',NULL,'',NULL,'Gr6lKAz5EaLSPsce-IcCXw');
INSERT INTO "labelwise_event" VALUES(8,1.79484243341342043871e+09,'old.csv','import',9,NULL,'dog',NULL,'','',NULL,'',NULL,'g2WNwz3Vmps-SHm8BGZPhg');
INSERT INTO "labelwise_event" VALUES(9,1.79484243342497777943e+09,'bob','note',3,NULL,NULL,NULL,'blurred','',NULL,'',NULL,'n1');
CREATE TABLE labelwise_item (
	"row" INTEGER NOT NULL, 
	ref TEXT NOT NULL, 
	PRIMARY KEY ("row")
);
INSERT INTO "labelwise_item" VALUES(0,'folder/0.jpg');
INSERT INTO "labelwise_item" VALUES(1,'folder/1.jpg');
INSERT INTO "labelwise_item" VALUES(2,'folder/2.jpg');
INSERT INTO "labelwise_item" VALUES(3,'folder/3.jpg');
INSERT INTO "labelwise_item" VALUES(4,'folder/4.jpg');
INSERT INTO "labelwise_item" VALUES(5,'folder/5.jpg');
INSERT INTO "labelwise_item" VALUES(6,'folder/6.jpg');
INSERT INTO "labelwise_item" VALUES(7,'folder/7.jpg');
INSERT INTO "labelwise_item" VALUES(8,'folder/8.jpg');
INSERT INTO "labelwise_item" VALUES(9,'folder/9.jpg');
CREATE TABLE labelwise_lease (
	"row" INTEGER NOT NULL, 
	who TEXT NOT NULL, 
	token TEXT NOT NULL, 
	made FLOAT NOT NULL, 
	until FLOAT NOT NULL, 
	redo BOOLEAN NOT NULL, 
	PRIMARY KEY ("row", who), 
	FOREIGN KEY("row") REFERENCES labelwise_pick ("row"), 
	UNIQUE (token)
);
INSERT INTO "labelwise_lease" VALUES(1,'bob','0QzAMYWhz2vrS91NxvSICQ',1.79484243343604135513e+09,1.79484243343604016308e+09,0);
CREATE TABLE labelwise_pick (
	"row" INTEGER NOT NULL, 
	round INTEGER NOT NULL, 
	place INTEGER NOT NULL, 
	slice TEXT NOT NULL, 
	score FLOAT, 
	why TEXT NOT NULL, 
	PRIMARY KEY ("row"), 
	FOREIGN KEY("row") REFERENCES labelwise_item ("row"), 
	FOREIGN KEY(round) REFERENCES labelwise_round (number)
);
INSERT INTO "labelwise_pick" VALUES(0,1,0,'chosen',0.25,'{"words": "typical"}');
INSERT INTO "labelwise_pick" VALUES(1,1,1,'test',NULL,'{}');
INSERT INTO "labelwise_pick" VALUES(2,1,2,'chosen',0.5,'{}');
CREATE TABLE labelwise_round (
	number INTEGER NOT NULL, 
	strategy TEXT NOT NULL, 
	model TEXT NOT NULL, 
	seed TEXT NOT NULL, 
	"after" INTEGER NOT NULL, 
	notes TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "labelwise_round" VALUES(1,'typiclust','','18446744073709551613',2,'{"seconds": 0.5}',1.79484243329735088353e+09);
CREATE UNIQUE INDEX labelwise_pick_order ON labelwise_pick (round, place);
CREATE INDEX labelwise_lease_until ON labelwise_lease (until);
CREATE TRIGGER labelwise_item_no_update BEFORE UPDATE ON labelwise_item BEGIN SELECT RAISE(ABORT, 'the table labelwise_item is append-only'); END;
CREATE TRIGGER labelwise_item_no_delete BEFORE DELETE ON labelwise_item BEGIN SELECT RAISE(ABORT, 'the table labelwise_item is append-only'); END;
CREATE TRIGGER labelwise_round_no_update BEFORE UPDATE ON labelwise_round BEGIN SELECT RAISE(ABORT, 'the table labelwise_round is append-only'); END;
CREATE TRIGGER labelwise_round_no_delete BEFORE DELETE ON labelwise_round BEGIN SELECT RAISE(ABORT, 'the table labelwise_round is append-only'); END;
CREATE TRIGGER labelwise_pick_no_update BEFORE UPDATE ON labelwise_pick BEGIN SELECT RAISE(ABORT, 'the table labelwise_pick is append-only'); END;
CREATE TRIGGER labelwise_pick_no_delete BEFORE DELETE ON labelwise_pick BEGIN SELECT RAISE(ABORT, 'the table labelwise_pick is append-only'); END;
CREATE TRIGGER labelwise_event_no_update BEFORE UPDATE ON labelwise_event BEGIN SELECT RAISE(ABORT, 'the table labelwise_event is append-only'); END;
CREATE TRIGGER labelwise_event_no_delete BEFORE DELETE ON labelwise_event BEGIN SELECT RAISE(ABORT, 'the table labelwise_event is append-only'); END;
CREATE TRIGGER labelwise_event_in_order BEFORE INSERT ON labelwise_event WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM labelwise_event) OR EXISTS (SELECT 1 FROM labelwise_event WHERE token = NEW.token) BEGIN SELECT RAISE(ABORT, 'the table labelwise_event is append-only'); END;
CREATE TRIGGER labelwise_item_no_replace BEFORE INSERT ON labelwise_item WHEN EXISTS (SELECT 1 FROM labelwise_item WHERE row = NEW.row) BEGIN SELECT RAISE(ABORT, 'the table labelwise_item is append-only'); END;
CREATE TRIGGER labelwise_round_no_replace BEFORE INSERT ON labelwise_round WHEN EXISTS (SELECT 1 FROM labelwise_round WHERE number = NEW.number) BEGIN SELECT RAISE(ABORT, 'the table labelwise_round is append-only'); END;
CREATE TRIGGER labelwise_pick_no_replace BEFORE INSERT ON labelwise_pick WHEN EXISTS (SELECT 1 FROM labelwise_pick WHERE row = NEW.row) BEGIN SELECT RAISE(ABORT, 'the table labelwise_pick is append-only'); END;
COMMIT;
