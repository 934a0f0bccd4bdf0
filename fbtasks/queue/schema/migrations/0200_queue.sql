-- The queue: live tasks, what became of them, and the processes that work. What moves them is in packages/. All times
-- are UTC in plain TIMESTAMP columns. Needs Firebird 5, dialect 3, pages of 4096 bytes or more. What
-- stands between two COMMIT is one transaction, which makes a new queue in half the time of one for each statement.
SET TERM ^ ;

-- The one clock of the queue. CAST(... AT TIME ZONE 'UTC' AS TIMESTAMP) is not UTC: a cast from WITH TIME ZONE
-- converts to the zone of the session. The difference of two moments is the same in each zone. Both are for anybody:
-- triggers and statements that are generated for the tables of an application call them with the rights of whoever
-- writes there.
CREATE FUNCTION QUEUE_UTC (MOMENT TIMESTAMP WITH TIME ZONE) RETURNS TIMESTAMP
AS
BEGIN
    RETURN DATEADD(DATEDIFF(MILLISECOND FROM TIMESTAMP '2000-01-01 00:00:00 +00:00' TO MOMENT)
        MILLISECOND TO TIMESTAMP '2000-01-01 00:00:00');
END^
-- The time of the statement, as CURRENT_TIMESTAMP is. To call QUEUE_UTC would double what it costs.
CREATE FUNCTION QUEUE_NOW RETURNS TIMESTAMP
AS
BEGIN
    RETURN DATEADD(DATEDIFF(MILLISECOND FROM TIMESTAMP '2000-01-01 00:00:00 +00:00' TO CURRENT_TIMESTAMP)
        MILLISECOND TO TIMESTAMP '2000-01-01 00:00:00');
END^
GRANT EXECUTE ON FUNCTION QUEUE_UTC TO PUBLIC^
GRANT EXECUTE ON FUNCTION QUEUE_NOW TO PUBLIC^
COMMIT^

-- What values are: of parameters and variables, and of columns where many tables have the same.
CREATE DOMAIN QUEUE_NAME AS VARCHAR(63) CHARACTER SET ASCII^
CREATE DOMAIN QUEUE_TEXT AS VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8^
CREATE DOMAIN QUEUE_MSG_NAME AS VARCHAR(250) CHARACTER SET UTF8 COLLATE UTF8^
CREATE DOMAIN QUEUE_MSG_DATA AS VARCHAR(8000) CHARACTER SET OCTETS^
CREATE DOMAIN QUEUE_LONG_TEXT AS BLOB SUB_TYPE TEXT CHARACTER SET UTF8 COLLATE UTF8^
CREATE DOMAIN QUEUE_BINARY AS BLOB SUB_TYPE BINARY^
CREATE DOMAIN QUEUE_USER AS VARCHAR(63) CHARACTER SET UTF8 COLLATE UTF8^
CREATE DOMAIN QUEUE_INLINE AS VARCHAR(2000) CHARACTER SET OCTETS^
CREATE DOMAIN QUEUE_RECORDS AS VARCHAR(32765) CHARACTER SET OCTETS^
CREATE DOMAIN QUEUE_DIGITS AS VARCHAR(32765) CHARACTER SET ASCII^
CREATE DOMAIN QUEUE_IDS AS VARCHAR(19000) CHARACTER SET ASCII^
CREATE DOMAIN QUEUE_MESSAGE AS VARCHAR(1000) CHARACTER SET UTF8 COLLATE UTF8^
CREATE DOMAIN QUEUE_FEW_IDS AS VARCHAR(1900) CHARACTER SET ASCII^
CREATE DOMAIN QUEUE_GATES AS VARCHAR(320) CHARACTER SET ASCII^
CREATE DOMAIN QUEUE_WORD AS VARCHAR(11) CHARACTER SET ASCII^
CREATE DOMAIN QUEUE_TEXT_BYTES AS VARCHAR(1020) CHARACTER SET OCTETS^
CREATE DOMAIN QUEUE_MARK AS CHAR(1) CHARACTER SET ASCII^
CREATE DOMAIN QUEUE_HASH AS CHAR(64) CHARACTER SET ASCII^

-- A value that no release writes is refused where it is written, rather than met by a worker that can do nothing with
-- it. A domain's check costs half of what a table's does.
CREATE DOMAIN QUEUE_LIVE_STATE AS SMALLINT NOT NULL CHECK (VALUE IN (0, 1, 2, 3, 4, 5))^
CREATE DOMAIN QUEUE_RANK AS SMALLINT NOT NULL CHECK (VALUE BETWEEN -9999 AND 9999)^
CREATE DOMAIN QUEUE_COUNT AS INTEGER DEFAULT 0 NOT NULL CHECK (VALUE BETWEEN 0 AND 1000000000)^
CREATE DOMAIN QUEUE_FLAG AS SMALLINT DEFAULT 0 NOT NULL CHECK (VALUE IN (0, 1))^
CREATE DOMAIN QUEUE_SUSPICION AS SMALLINT DEFAULT 0 NOT NULL CHECK (VALUE IN (0, 1, 2))^

CREATE SEQUENCE QUEUE_TASK_SEQ^
CREATE SEQUENCE QUEUE_PROCESS_SEQ^
CREATE SEQUENCE QUEUE_NOTE_SEQ^
-- The numbers of those who let tasks in: no two of them have the same.
CREATE SEQUENCE QUEUE_OWNER_SEQ^

-- Which packages are in use: NUMBER is behind their names. They are made anew, under a new number, rather than
-- replaced: what others have prepared goes on with what it knows. HASH is of the text that they were made from.
CREATE SEQUENCE QUEUE_GENERATION_SEQ^
CREATE TABLE QUEUE_GENERATION (
    ID SMALLINT NOT NULL PRIMARY KEY CHECK (ID = 1),
    NUMBER INTEGER NOT NULL,
    HASH QUEUE_HASH NOT NULL,
    SINCE_TIME TIMESTAMP NOT NULL
)^

-- Which database this is: a restored or copied one has another GUID or path, and runs nothing until it is adopted.
CREATE TABLE QUEUE_IDENTITY (
    ID SMALLINT NOT NULL PRIMARY KEY,
    DATABASE_GUID VARCHAR(38) CHARACTER SET ASCII NOT NULL,
    DATABASE_PATH QUEUE_MESSAGE NOT NULL
)^

-- Live tasks only: ready (0), scheduled (1), running (2), parked (3), held back (4), awaiting another step (5).
-- A row that is claimed is changed by its finisher alone. An update costs what the declared widths add up to, used or
-- not: so what is long or rare is in other tables, or a BLOB.
CREATE TABLE QUEUE_TASK (
    ID BIGINT NOT NULL PRIMARY KEY,
    NAME QUEUE_TEXT NOT NULL,
    QUEUE QUEUE_NAME NOT NULL,
    STATE QUEUE_LIVE_STATE,
    -- What sorts ascending: the highest priority has the lowest rank. People read PRIORITY.
    PRIORITY_RANK QUEUE_RANK,
    PRIORITY COMPUTED BY (-PRIORITY_RANK),
    RAISE_TIME TIMESTAMP NOT NULL,
    START_TIME TIMESTAMP NOT NULL,
    -- START_TIME while it is scheduled, else NULL: what the index of due tasks is of. Kept by QUEUE_TASK_DUE_TIME.
    DUE_TIME TIMESTAMP,
    EXPIRE_TIME TIMESTAMP,
    CLAIM_TIME TIMESTAMP,
    -- Tries that have ended, tries allowed (NULL: as the task says; 0: without limit), workers lost while it ran.
    TRY_COUNT QUEUE_COUNT,
    MAX_TRIES INTEGER,
    CRASH_COUNT QUEUE_COUNT,
    -- 1 when a worker or process died while it held this task; 2 when a worker did so again. A suspect is claimed
    -- alone.
    -- Cleared when it survives, whatever its outcome.
    SUSPECT QUEUE_SUSPICION,
    -- Its caller gave it an id, which is in QUEUE_TASK_ID.
    HAS_TASK_ID BOOLEAN DEFAULT FALSE NOT NULL,
    -- It has limits, or is of a lane of its subscription (QUEUE_HOLD); it has a place of a queue with a limit
    -- (QUEUE_PLACE).
    HAS_HOLDS BOOLEAN DEFAULT FALSE NOT NULL,
    HAS_LANE BOOLEAN DEFAULT FALSE NOT NULL,
    HAS_PLACE BOOLEAN DEFAULT FALSE NOT NULL,
    -- It runs, and the limit of its queue counts it.
    IS_COUNTED BOOLEAN DEFAULT FALSE NOT NULL,
    -- Others follow it (QUEUE_LINK), or a group counts it (QUEUE_NODE); it is given results of others.
    IS_STEP BOOLEAN DEFAULT FALSE NOT NULL,
    HAS_INPUTS BOOLEAN DEFAULT FALSE NOT NULL,
    -- It has something of features of other distributions (QUEUE_EXTRA).
    HAS_EXTRAS BOOLEAN DEFAULT FALSE NOT NULL,
    -- Its START_TIME, its EXPIRE_TIME count from when it is no longer awaiting.
    DELAYS_START BOOLEAN DEFAULT FALSE NOT NULL,
    DELAYS_EXPIRY BOOLEAN DEFAULT FALSE NOT NULL,
    -- The subscription that it comes from.
    SOURCE_ID INTEGER,
    WORKER_ID BIGINT,
    CLAIM_ID BIGINT,
    -- What a claim tells of it between its numbers and its texts, when nothing about it is out of the ordinary: whether
    -- it has holds. NULL: more (FBTASKS_WORKER.EXTRAS).
    CLAIM_MARK COMPUTED BY (CASE WHEN PRIORITY_RANK = 0 AND TRY_COUNT = 0 AND CRASH_COUNT = 0 AND SUSPECT = 0
        AND MAX_TRIES IS NULL AND EXPIRE_TIME IS NULL AND NOT (HAS_TASK_ID OR IS_STEP OR HAS_INPUTS OR HAS_EXTRAS)
        THEN IIF(HAS_HOLDS, ';1:', ';0:') END),
    -- Why it is tried again.
    ERROR_MSG QUEUE_LONG_TEXT,
    ENQUEUED_BY QUEUE_USER,
    CONTENT_TYPE QUEUE_NAME NOT NULL,
    -- Up to 2000 bytes here; a larger payload is in QUEUE_PAYLOAD and this is NULL.
    PAYLOAD QUEUE_INLINE
)^
CREATE INDEX QUEUE_TASK_CLAIM ON QUEUE_TASK (STATE, QUEUE, PRIORITY_RANK, START_TIME, ID)^
-- Leads to what is due. A claim does not change its key; and its entries go as rows go: those of an expression index
-- that is read in order, and of a partial index, stay for good.
CREATE INDEX QUEUE_TASK_DUE ON QUEUE_TASK (DUE_TIME)^

CREATE TABLE QUEUE_PAYLOAD (
    ID BIGINT NOT NULL PRIMARY KEY,
    DATA QUEUE_BINARY NOT NULL
)^

-- Ids given by callers: one id is enqueued once, for as long as its task or its outcome is known.
-- An index key has room for a quarter of a page; UTF8 takes four bytes a character, so the key is a hash of the id.
CREATE TABLE QUEUE_TASK_ID (
    TASK_HASH BINARY(32) NOT NULL,
    TASK_ID QUEUE_TEXT NOT NULL,
    ID BIGINT NOT NULL,
    CONSTRAINT QUEUE_TASK_ID_TAKEN PRIMARY KEY (TASK_HASH)
)^
CREATE INDEX QUEUE_TASK_ID_ID ON QUEUE_TASK_ID (ID)^

-- Tasks that were merged into others: who asks for ID is answered for TO_ID.
CREATE TABLE QUEUE_REDIRECT (
    ID BIGINT NOT NULL PRIMARY KEY,
    TO_ID BIGINT NOT NULL,
    ENQUEUED_BY QUEUE_USER
)^
CREATE INDEX QUEUE_REDIRECT_TO ON QUEUE_REDIRECT (TO_ID)^

-- Cancellation requests for running tasks: beside the row, which belongs to its finisher.
CREATE TABLE QUEUE_CANCEL (
    ID BIGINT NOT NULL PRIMARY KEY,
    REQUEST_TIME TIMESTAMP NOT NULL,
    -- 1: stop it; 0: do not try it again.
    TERMINATE QUEUE_FLAG
)^

-- Lanes: of each key of a limit, and of each lane of a subscription, how many tasks are in (USED), by QUEUE_HOLD, as
-- far as notes of them have been read. A lane of a subscription, in which one task is at a time, is
--   free      no row here, and no task is in by QUEUE_HOLD
--   shut      one is, and there is no row here: nothing waits, and its end is not noted
--   full      USED is 1, HOLDER_ID is the task that is in, and WAITS: a note of its end opens the lane. Who saw nothing
--             wait may have ended it without one: so the lane is looked at again at WAKE_TIME
--   halted    HALTED: HOLDER_ID has failed; a note that it was put back or discarded opens the lane
--   waiting   USED is 0, WAITS: it is opened at WAKE_TIME
-- WAITS tells that changes wait for the lane, or tasks in its line. Of a polled table HOLDER_ID is the task of the row
-- with that key; NULL: the row was handled, or has failed, and is not taken again. Rows are written by one transaction
-- at a time for each owner: the one that has locked its row of QUEUE_DISPATCH. All others leave a note (QUEUE_NOTE). So
-- no unique key is met by two at once, and no transaction waits.
CREATE TABLE QUEUE_GATE (
    OWNER_ID INTEGER NOT NULL,
    LANE BIGINT NOT NULL,
    HOLDER_ID BIGINT,
    HALTED QUEUE_FLAG,
    WAITS QUEUE_FLAG,
    WAKE_TIME TIMESTAMP,
    USED INTEGER DEFAULT 0 NOT NULL,
    -- Of a limit: microseconds since 1970 of the next token.
    FREE_US BIGINT,
    CONSTRAINT QUEUE_GATE_LANE PRIMARY KEY (OWNER_ID, LANE)
)^
CREATE INDEX QUEUE_GATE_WAKE ON QUEUE_GATE (OWNER_ID, WAKE_TIME)^

-- What a task has to pass, in the order in which it does, which is the same for all tasks: at STEP -1 the lane of the
-- subscription that it comes from, and from 0 on its limits. It waits in the line of the first one that has not let it
-- in. The row is written by whoever writes that of the task.
CREATE TABLE QUEUE_HOLD (
    TASK_ID BIGINT NOT NULL,
    STEP SMALLINT NOT NULL,
    OWNER_ID INTEGER NOT NULL,
    LANE BIGINT NOT NULL,
    -- From -9999 to 9999: its place in the line, by its PRIORITY_RANK, or 0 where the order is that of enqueueing;
    -- 20000: it is not its turn to wait here; 30000: it was let in, and its end is told; 30001: it was let in; 30002:
    -- it was let in alone, and its end is told when something waits there, or it has failed.
    -- Never NULL: of a row that leaves a range of an index the engine leaves nothing there.
    SORT_KEY SMALLINT NOT NULL,
    -- 1 when its place stays taken while the task waits for another try.
    KEEPS QUEUE_FLAG,
    CONSTRAINT QUEUE_HOLD_STEP PRIMARY KEY (TASK_ID, STEP)
)^
CREATE INDEX QUEUE_HOLD_LINE ON QUEUE_HOLD (OWNER_ID, LANE, SORT_KEY, TASK_ID)^

-- What transactions have to tell the one that lets tasks in. KIND: 'F' TASK_ID has ended; 'G' it has, and did not run
-- then; 'S' it has failed, which may halt the lane; 'D' TASK_ID, which failed, is discarded or put back; 'T' TASK_ID
-- waits to be let in; 'B' it has given its place back, and goes on; 'C' the limit was changed; 'W' something else that
-- QUEUE is told as well. Of a limit, those of tasks that have others before them have IDs from 4611686018427387904 on.
-- One that was read has an ID below 0, and no QUEUE: the next reader deletes it.
CREATE TABLE QUEUE_NOTE (
    OWNER_ID INTEGER NOT NULL,
    ID BIGINT NOT NULL,
    KIND QUEUE_MARK NOT NULL,
    LANE BIGINT NOT NULL,
    TASK_ID BIGINT NOT NULL,
    -- Which queue may be able to do something about it.
    QUEUE QUEUE_NAME,
    CONSTRAINT QUEUE_NOTE_ID PRIMARY KEY (OWNER_ID, ID)
)^
CREATE INDEX QUEUE_NOTE_QUEUE ON QUEUE_NOTE (QUEUE, OWNER_ID)^

-- What a queue is told beside its tasks. A queue without anything of that has no row: a claim from it, and an enqueue
-- into it, read one key.
CREATE TABLE QUEUE_POLICY (
    QUEUE QUEUE_NAME NOT NULL PRIMARY KEY,
    -- 1 since subscriptions bring tasks to it, limits hold tasks of it back, or tasks of it follow groups: a claim asks
    -- these first (FBTASKS_CORE.FEED).
    FED QUEUE_FLAG,
    -- 1 when nothing is claimed from it.
    PAUSED QUEUE_FLAG,
    -- The limit on how many tasks of it run at once, or how often they begin. Once it has one, it keeps that, which
    -- may say nothing.
    LIMIT_ID INTEGER,
    -- How many tasks that have not ended it holds at most (NULL: any number), and what becomes of one more.
    MAX_LENGTH INTEGER CHECK (MAX_LENGTH > 0),
    WHEN_FULL QUEUE_WORD CHECK (WHEN_FULL IN ('wait', 'reject', 'drop_oldest', 'drop_newest')),
    -- 1 when it is open in its rows of QUEUE_SHIFT alone.
    WINDOWED QUEUE_FLAG,
    -- Milliseconds after which a ready task is on a level with one whose priority is one higher (NULL: never).
    AGE_MS BIGINT CHECK (AGE_MS > 0),
    -- What the code of which app says of it, as JSON, with its hash.
    APP QUEUE_TEXT,
    DEFINITION QUEUE_LONG_TEXT,
    HASH QUEUE_HASH
)^

-- Names of tasks that are paused (PAUSED 1), and of those that go on, and are brought back from being parked (0). A
-- name may be there twice.
CREATE TABLE QUEUE_RULE (
    ROW_NO BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    NAME QUEUE_TEXT NOT NULL,
    PAUSED QUEUE_FLAG
)^

-- Names of tasks that have on_failure hooks: a failure of one enqueues a task of this name with :on_failure behind it,
-- which calls them. Kept by the workers that know the task; the key as in QUEUE_TASK_ID.
CREATE TABLE QUEUE_ON_FAILURE (
    NAME_HASH BINARY(32) NOT NULL PRIMARY KEY,
    NAME QUEUE_TEXT NOT NULL
)^

-- Which limits hold back tasks of which queues, and which subscriptions bring some. A pair may be there twice.
CREATE TABLE QUEUE_FEEDER (
    QUEUE QUEUE_NAME NOT NULL,
    OWNER_ID INTEGER NOT NULL,
    -- When it may let something in next, whatever is noted; NULL: never.
    DUE_TIME TIMESTAMP,
    ROW_NO BIGINT GENERATED BY DEFAULT AS IDENTITY,
    CONSTRAINT QUEUE_FEEDER_QUEUE PRIMARY KEY (QUEUE, OWNER_ID, ROW_NO)
)^
CREATE INDEX QUEUE_FEEDER_OWNER ON QUEUE_FEEDER (OWNER_ID)^
CREATE INDEX QUEUE_FEEDER_DUE ON QUEUE_FEEDER (QUEUE, DUE_TIME)^

-- One row for each subscription: the transaction that has it locked makes tasks of its changes. One that does not get
-- the lock looks again a little later.
CREATE TABLE QUEUE_DISPATCH (
    SUBSCRIPTION_ID INTEGER NOT NULL PRIMARY KEY,
    -- Changes of lane 0 have been given out up to here; what was committed late may be below.
    MARK_ID BIGINT DEFAULT 0 NOT NULL,
    -- Where an order is kept: behind which number to read. What is committed from now on has a higher one, unless its
    -- transaction is older than BACK_TX (NULL: not known yet) and among ELDERS: pairs of 19 digits each, a
    -- transaction and the BACK_ID for it.
    BACK_ID BIGINT DEFAULT 0 NOT NULL,
    BACK_TX BIGINT,
    ELDERS QUEUE_FEW_IDS DEFAULT '' NOT NULL,
    -- The lane that was looked at last, so that all have their turn.
    LAST_LANE BIGINT DEFAULT -9223372036854775807 NOT NULL,
    -- How many changes have been given out so far.
    TAKEN BIGINT DEFAULT 0 NOT NULL,
    -- How many notes have been read, and how many of these are deleted.
    NOTES_READ BIGINT DEFAULT 0 NOT NULL,
    NOTES_DELETED BIGINT DEFAULT 0 NOT NULL,
    -- Up to which LANE changes have been taken, and up to which they are deleted.
    TAKEN_NO BIGINT DEFAULT 0 NOT NULL,
    GONE_NO BIGINT DEFAULT 0 NOT NULL,
    -- The transaction that has read notes, or taken changes, at last: it deletes none of them.
    LAST_TX BIGINT
)^

-- The free places of queues with a limit: who enqueues takes one away, and the end of its task gives one back. A
-- number below 0 is owed: the limit was lowered below what the queue held, and one place that is given back is not
-- free. NO_ is not a key: who gives one back never waits or fails for another one's. It has no meaning; it spreads
-- those who look.
CREATE TABLE QUEUE_PLACE (
    QUEUE QUEUE_NAME NOT NULL,
    NO_ INTEGER NOT NULL,
    ROW_NO BIGINT GENERATED BY DEFAULT AS IDENTITY,
    CONSTRAINT QUEUE_PLACE_NO PRIMARY KEY (QUEUE, NO_, ROW_NO)
)^

-- When a queue with a window is open: the next weeks, as workers compute them (fbtasks/tasks/windows.py).
CREATE TABLE QUEUE_SHIFT (
    QUEUE QUEUE_NAME NOT NULL,
    OPEN_TIME TIMESTAMP NOT NULL,
    CLOSE_TIME TIMESTAMP NOT NULL,
    ROW_NO BIGINT GENERATED BY DEFAULT AS IDENTITY,
    CONSTRAINT QUEUE_SHIFT_CLOSE PRIMARY KEY (QUEUE, CLOSE_TIME, ROW_NO)
)^

-- Finished tasks: succeeded (10), failed (11), cancelled (12).
CREATE TABLE QUEUE_HISTORY (
    ID BIGINT NOT NULL PRIMARY KEY,
    NAME QUEUE_TEXT NOT NULL,
    QUEUE QUEUE_NAME NOT NULL,
    STATE SMALLINT NOT NULL,
    PRIORITY_RANK SMALLINT NOT NULL,
    PRIORITY COMPUTED BY (-PRIORITY_RANK),
    RAISE_TIME TIMESTAMP NOT NULL,
    START_TIME TIMESTAMP NOT NULL,
    CLAIM_TIME TIMESTAMP,
    FINISH_TIME TIMESTAMP NOT NULL,
    ELAPSED_MS BIGINT,
    TRY_COUNT INTEGER NOT NULL,
    MAX_TRIES INTEGER,
    CRASH_COUNT INTEGER NOT NULL,
    HAS_TASK_ID BOOLEAN DEFAULT FALSE NOT NULL,
    HAS_HOLDS BOOLEAN DEFAULT FALSE NOT NULL,
    HAS_LANE BOOLEAN DEFAULT FALSE NOT NULL,
    IS_STEP BOOLEAN DEFAULT FALSE NOT NULL,
    HAS_INPUTS BOOLEAN DEFAULT FALSE NOT NULL,
    HAS_EXTRAS BOOLEAN DEFAULT FALSE NOT NULL,
    DELAYS_START BOOLEAN DEFAULT FALSE NOT NULL,
    DELAYS_EXPIRY BOOLEAN DEFAULT FALSE NOT NULL,
    SOURCE_ID INTEGER,
    WORKER QUEUE_TEXT,
    ENQUEUED_BY QUEUE_USER,
    ERROR_TYPE QUEUE_TEXT,
    ERROR_MSG QUEUE_LONG_TEXT,
    TRACEBACK QUEUE_LONG_TEXT,
    CONTENT_TYPE QUEUE_NAME NOT NULL,
    PAYLOAD QUEUE_INLINE,
    -- The result, or for a failure the arguments of its exception. Larger ones are in QUEUE_RESULT.
    RESULT_TYPE QUEUE_NAME,
    RESULT QUEUE_INLINE
)^
CREATE DESCENDING INDEX QUEUE_HISTORY_STATE ON QUEUE_HISTORY (STATE, FINISH_TIME)^

CREATE TABLE QUEUE_RESULT (
    ID BIGINT NOT NULL PRIMARY KEY,
    DATA QUEUE_BINARY NOT NULL
)^

-- The register of the living: the processes that work on tasks, and those that consume messages. Each renews its
-- lease by heartbeats; of one that is dead the others of its kind take over what it holds.
CREATE TABLE QUEUE_PROCESS (
    ID BIGINT NOT NULL PRIMARY KEY,
    KIND QUEUE_WORD NOT NULL CHECK (KIND IN ('worker', 'consumer')),
    HOST QUEUE_TEXT NOT NULL,
    -- The hash of HOST when the process registered, by which neighbours are found: HOST is too long for an index.
    HOST_KEY BIGINT,
    PID INTEGER NOT NULL,
    PID_START BIGINT NOT NULL,
    ATTACHMENT_ID BIGINT,
    START_TIME TIMESTAMP NOT NULL,
    HEARTBEAT_TIME TIMESTAMP NOT NULL,
    LEASE_UNTIL TIMESTAMP NOT NULL,
    -- 1 when some of the tasks that it held were given back, and the rest was locked by another transaction.
    PARTLY_RELEASED QUEUE_FLAG,
    -- Of a worker.
    NAME QUEUE_TEXT,
    DRAINING BOOLEAN DEFAULT FALSE NOT NULL,
    QUEUES BLOB SUB_TYPE TEXT CHARACTER SET ASCII,
    POOL VARCHAR(31) CHARACTER SET ASCII,
    CONCURRENCY INTEGER,
    VERSION VARCHAR(31) CHARACTER SET ASCII,
    TASKS QUEUE_LONG_TEXT,
    -- The features of other distributions that it has, each between spaces.
    FEATURES VARCHAR(2000) CHARACTER SET ASCII DEFAULT '' NOT NULL,
    -- Of a consumer: how often a message that it claims may have come back; NULL: any number of times.
    DELIVERY_LIMIT INTEGER
)^
-- A heartbeat changes none of its columns.
CREATE INDEX QUEUE_PROCESS_HOST ON QUEUE_PROCESS (KIND, HOST_KEY, ID)^

-- Counters per hour, queue, worker and slot (0: the worker itself; others: executors that finish in a transaction of
-- their own). Of days long past there is one row a day and queue, of worker 0 and slot 0: see
-- FBTASKS_WORKER.FOLD_STATS.
CREATE TABLE QUEUE_STAT (
    HOUR_TIME TIMESTAMP NOT NULL,
    QUEUE QUEUE_NAME NOT NULL,
    WORKER_ID BIGINT NOT NULL,
    SLOT INTEGER NOT NULL,
    SUCCEEDED BIGINT DEFAULT 0 NOT NULL,
    FAILED BIGINT DEFAULT 0 NOT NULL,
    CANCELLED BIGINT DEFAULT 0 NOT NULL,
    RETRIED BIGINT DEFAULT 0 NOT NULL,
    RELEASED BIGINT DEFAULT 0 NOT NULL,
    ELAPSED_MS BIGINT DEFAULT 0 NOT NULL,
    CONFLICTS BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT QUEUE_STAT_PK PRIMARY KEY (HOUR_TIME, QUEUE, WORKER_ID, SLOT)
)^

-- Tables whose rows are deleted by their keys, and that are read through, for the room that those leave (see
-- FBTASKS_WORKER.COLLECT), in the order of NO_. Those of a feature come with it.
CREATE TABLE QUEUE_COLLECTED (
    NO_ SMALLINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    TABLE_NAME QUEUE_NAME NOT NULL
)^

COMMIT^

INSERT INTO QUEUE_COLLECTED (TABLE_NAME) VALUES ('QUEUE_TASK')^
INSERT INTO QUEUE_COLLECTED (TABLE_NAME) VALUES ('QUEUE_PAYLOAD')^
INSERT INTO QUEUE_COLLECTED (TABLE_NAME) VALUES ('QUEUE_RESULT')^
INSERT INTO QUEUE_COLLECTED (TABLE_NAME) VALUES ('QUEUE_TASK_ID')^
INSERT INTO QUEUE_COLLECTED (TABLE_NAME) VALUES ('QUEUE_GATE')^
INSERT INTO QUEUE_COLLECTED (TABLE_NAME) VALUES ('QUEUE_NOTE')^
INSERT INTO QUEUE_COLLECTED (TABLE_NAME) VALUES ('QUEUE_REDIRECT')^
INSERT INTO QUEUE_COLLECTED (TABLE_NAME) VALUES ('QUEUE_HOLD')^
INSERT INTO QUEUE_COLLECTED (TABLE_NAME) VALUES ('QUEUE_EXTRA')^

-- Keeps DUE_TIME, whichever statement schedules a task or makes it ready: a procedure's, or one that was written by
-- hand.
CREATE OR ALTER TRIGGER QUEUE_TASK_DUE_TIME FOR QUEUE_TASK ACTIVE BEFORE INSERT OR UPDATE POSITION 0
AS
BEGIN
    NEW.DUE_TIME = IIF(NEW.STATE = 1, NEW.START_TIME, NULL);
END^

CREATE EXCEPTION QUEUE_FULL 'the queue is full'^
CREATE EXCEPTION QUEUE_BAD_CALL 'a task cannot be enqueued like that'^
CREATE EXCEPTION QUEUE_STEP_REFUSED 'the workflow cannot be enqueued'^
-- Raised when the caller's role does not allow what it asks for; the text says what.
CREATE EXCEPTION QUEUE_REFUSED 'the caller''s role does not allow this'^

SET TERM ; ^
