-- The queue: live tasks, what became of them, the processes that work, and the procedures that move them.
-- All times are UTC in plain TIMESTAMP columns. Needs Firebird 5 (SKIP LOCKED), dialect 3, pages of 4096 bytes or more.
-- What stands between two COMMIT is one transaction, which makes a new queue in half the time of one for each statement.
SET TERM ^ ;

-- The one clock of the queue. CAST(... AT TIME ZONE 'UTC' AS TIMESTAMP) is not UTC: a cast from WITH TIME ZONE converts to the zone of
-- the session. The difference of two moments is the same in each zone. Both are for anybody: triggers and statements that are
-- generated for the tables of an application call them with the rights of whoever writes there.
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

-- A value that no release writes is refused where it is written, rather than met by a worker that can do nothing with it.
-- A domain's check costs half of what a table's does.
CREATE DOMAIN QUEUE_LIVE_STATE AS SMALLINT NOT NULL CHECK (VALUE IN (0, 1, 2, 3, 4, 5))^
CREATE DOMAIN QUEUE_RANK AS SMALLINT NOT NULL CHECK (VALUE BETWEEN -9999 AND 9999)^
CREATE DOMAIN QUEUE_COUNT AS INTEGER DEFAULT 0 NOT NULL CHECK (VALUE BETWEEN 0 AND 1000000000)^
CREATE DOMAIN QUEUE_FLAG AS SMALLINT DEFAULT 0 NOT NULL CHECK (VALUE IN (0, 1))^
CREATE DOMAIN QUEUE_SUSPICION AS SMALLINT DEFAULT 0 NOT NULL CHECK (VALUE IN (0, 1, 2))^

CREATE SEQUENCE QUEUE_TASK_SEQ^
CREATE SEQUENCE QUEUE_PROCESS_SEQ^
CREATE SEQUENCE QUEUE_NOTE_SEQ^

-- Which database this is: a restored or copied one has another GUID or path, and runs nothing until it is adopted.
CREATE TABLE QUEUE_IDENTITY (
    ID SMALLINT NOT NULL PRIMARY KEY,
    DATABASE_GUID VARCHAR(38) CHARACTER SET ASCII NOT NULL,
    DATABASE_PATH VARCHAR(1000) CHARACTER SET UTF8 NOT NULL COLLATE UTF8
)^

-- Live tasks only: ready (0), scheduled (1), running (2), parked (3), held by a gate (4), awaiting another step (5). A row that is claimed is changed by its finisher alone.
-- An update costs what the declared widths add up to, used or not: so what is long or rare is in other tables, or a BLOB.
CREATE TABLE QUEUE_TASK (
    ID BIGINT NOT NULL PRIMARY KEY,
    NAME VARCHAR(255) CHARACTER SET UTF8 NOT NULL COLLATE UTF8,
    QUEUE VARCHAR(63) CHARACTER SET ASCII NOT NULL,
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
    -- 1 when a worker or process died while it held this task; 2 when that happened again to a task that had begun and was
    -- not alone. A suspect is claimed alone. STARTED: 1 when a suspect is known to have begun. Both are cleared when it
    -- survives, whatever its outcome.
    SUSPECT QUEUE_SUSPICION,
    STARTED QUEUE_FLAG,
    -- Bits: 1 its caller gave it an id, which is in QUEUE_TASK_ID; 2 the gates of its limits are in QUEUE_PATH; 4 its START_TIME counts from
    -- when it is no longer awaiting; 8 others follow it (QUEUE_LINK); 16 a group counts it (QUEUE_NODE); 32 it is given results of others; 64 it has a place of a queue with a limit (QUEUE_PLACE);
    -- 128 nothing is to be woken when it ends; 256 nor when it has run and nothing waits behind its gate; 512 it is in: the gates of
    -- its limits have let it in; 1024 its gate stays taken while it waits for another try; 2048 it has gates of limits;
    -- 4096 its EXPIRE_TIME counts from when it is no longer awaiting; 8192 it runs, and the limit of its queue counts it.
    TRAITS SMALLINT DEFAULT 0 NOT NULL,
    -- The subscription that it comes from, or its one limit; with a LANE it holds, or waits for, the gate of that lane (QUEUE_GATE).
    OWNER_ID INTEGER,
    LANE BIGINT,
    WORKER_ID BIGINT,
    CLAIM_ID BIGINT,
    -- Why it is tried again.
    ERROR_MSG BLOB SUB_TYPE TEXT CHARACTER SET UTF8 COLLATE UTF8,
    ENQUEUED_BY VARCHAR(63) CHARACTER SET UTF8 COLLATE UTF8,
    CONTENT_TYPE VARCHAR(63) CHARACTER SET ASCII NOT NULL,
    -- Up to 2000 bytes here; a larger payload is in QUEUE_PAYLOAD and this is NULL.
    PAYLOAD VARCHAR(2000) CHARACTER SET OCTETS
)^
CREATE INDEX QUEUE_TASK_CLAIM ON QUEUE_TASK (STATE, QUEUE, PRIORITY_RANK, START_TIME, ID)^
-- Leads to what is due. A claim does not change its key; and its entries go as rows go: those of an expression index that is read in
-- order, and of a partial index, stay for good.
CREATE INDEX QUEUE_TASK_DUE ON QUEUE_TASK (DUE_TIME)^

CREATE TABLE QUEUE_PAYLOAD (
    ID BIGINT NOT NULL PRIMARY KEY,
    DATA BLOB SUB_TYPE BINARY NOT NULL
)^

-- Ids given by callers: one id is enqueued once, for as long as its task or its outcome is known.
-- An index key has room for a quarter of a page; UTF8 takes four bytes a character, so the key is a hash of the id.
CREATE TABLE QUEUE_TASK_ID (
    TASK_HASH BINARY(32) NOT NULL,
    TASK_ID VARCHAR(255) CHARACTER SET UTF8 NOT NULL COLLATE UTF8,
    ID BIGINT NOT NULL,
    CONSTRAINT QUEUE_TASK_ID_TAKEN PRIMARY KEY (TASK_HASH)
)^
CREATE INDEX QUEUE_TASK_ID_ID ON QUEUE_TASK_ID (ID)^

-- Tasks that were merged into others: who asks for ID is answered for TO_ID.
CREATE TABLE QUEUE_REDIRECT (
    ID BIGINT NOT NULL PRIMARY KEY,
    TO_ID BIGINT NOT NULL,
    ENQUEUED_BY VARCHAR(63) CHARACTER SET UTF8 COLLATE UTF8
)^
CREATE INDEX QUEUE_REDIRECT_TO ON QUEUE_REDIRECT (TO_ID)^

-- Cancellation requests for running tasks: beside the row, which belongs to its finisher.
CREATE TABLE QUEUE_CANCEL (
    ID BIGINT NOT NULL PRIMARY KEY,
    REQUEST_TIME TIMESTAMP NOT NULL,
    -- 1: stop it; 0: do not try it again.
    TERMINATE QUEUE_FLAG
)^

-- Gates: of each lane of a subscription one task is let in at a time. A gate is
--   free      no row: no task is in, and nothing waits
--   shut      HOLDER_ID is the task that is in; a note of its end opens the gate
--   halted    shut, and HALTED: that task has failed; a note of its retry or its discard opens the gate
--   waiting   no HOLDER_ID, WAITS: it is opened at WAKE_TIME
--   kept      no HOLDER_ID, nothing WAITS: the row of a polled table was handled, or has failed, and is not taken again
-- What waits behind a gate (WAITS) are changes, or tasks with a ticket. Rows are written by one transaction at a time for each
-- owner: the one that has locked its row of QUEUE_DISPATCH. All others leave a note (QUEUE_NOTE). So no unique key is met by two
-- at once, and no transaction waits.
CREATE TABLE QUEUE_GATE (
    OWNER_ID INTEGER NOT NULL,
    LANE BIGINT NOT NULL,
    HOLDER_ID BIGINT,
    HALTED QUEUE_FLAG,
    WAITS QUEUE_FLAG,
    WAKE_TIME TIMESTAMP,
    -- Of a limit: how many are in, microseconds since 1970 of the next token, and the ticket behind which the next one is.
    USED INTEGER DEFAULT 0 NOT NULL,
    FREE_US BIGINT,
    MARK_RANK SMALLINT,
    MARK_ID BIGINT,
    CONSTRAINT QUEUE_GATE_LANE PRIMARY KEY (OWNER_ID, LANE)
)^
CREATE INDEX QUEUE_GATE_WAKE ON QUEUE_GATE (OWNER_ID, WAKE_TIME)^

-- Tasks in state 4, which wait behind a gate to be let in.
CREATE TABLE QUEUE_TICKET (
    OWNER_ID INTEGER NOT NULL,
    LANE BIGINT NOT NULL,
    PRIORITY_RANK SMALLINT DEFAULT 0 NOT NULL,
    TASK_ID BIGINT NOT NULL
)^
CREATE INDEX QUEUE_TICKET_LANE ON QUEUE_TICKET (OWNER_ID, LANE, PRIORITY_RANK, TASK_ID)^

-- The gates of a task that has several, in the order in which it passes them, which is the same for all tasks.
CREATE TABLE QUEUE_PATH (
    TASK_ID BIGINT NOT NULL,
    STEP SMALLINT NOT NULL,
    OWNER_ID INTEGER NOT NULL,
    LANE BIGINT NOT NULL,
    -- 1 when it stays taken while the task waits for another try.
    KEEPS QUEUE_FLAG,
    -- 1 when it has let the task in.
    IS_IN QUEUE_FLAG,
    CONSTRAINT QUEUE_PATH_STEP PRIMARY KEY (TASK_ID, STEP)
)^

-- What transactions have to tell the one that opens gates. KIND: 'F' TASK_ID has ended; 'G' it has, and did not run then; 'S' it has
-- failed, which may halt the gate; 'D' TASK_ID, which failed, is discarded; 'H' the gate is handed on to TASK_ID;
-- 'T' TASK_ID waits to be let in; 'B' it has given its place back, and goes on; 'C' the limit was changed.
CREATE TABLE QUEUE_NOTE (
    OWNER_ID INTEGER NOT NULL,
    ID BIGINT NOT NULL,
    KIND CHAR(1) CHARACTER SET ASCII NOT NULL,
    LANE BIGINT NOT NULL,
    TASK_ID BIGINT NOT NULL
)^
CREATE INDEX QUEUE_NOTE_ID ON QUEUE_NOTE (OWNER_ID, ID)^

-- What a queue is told beside its tasks. A queue without anything of that has no row: a claim from it, and an enqueue into it, read
-- one key.
CREATE TABLE QUEUE_POLICY (
    QUEUE VARCHAR(63) CHARACTER SET ASCII NOT NULL PRIMARY KEY,
    -- 1 when subscriptions bring tasks to it; 1 when limits hold tasks of it back.
    FED QUEUE_FLAG,
    GATED QUEUE_FLAG,
    -- 1 when tasks of it follow groups.
    GROUPED QUEUE_FLAG,
    -- 1 when nothing is claimed from it.
    PAUSED QUEUE_FLAG,
    -- The limit on how many tasks of it run at once, or how often they begin. Once it has one, it keeps that, which may say nothing.
    LIMIT_ID INTEGER,
    -- How many tasks that have not ended it holds at most (NULL: any number), and what becomes of one more.
    MAX_LENGTH INTEGER CHECK (MAX_LENGTH > 0),
    WHEN_FULL VARCHAR(11) CHARACTER SET ASCII CHECK (WHEN_FULL IN ('wait', 'reject', 'drop_oldest', 'drop_newest')),
    -- 1 when it is open in its rows of QUEUE_SHIFT alone.
    WINDOWED QUEUE_FLAG,
    -- Milliseconds after which a ready task is on a level with one whose priority is one higher (NULL: never).
    AGE_MS BIGINT CHECK (AGE_MS > 0),
    -- What the code of which app says of it, as JSON, with its hash.
    APP VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8,
    DEFINITION BLOB SUB_TYPE TEXT CHARACTER SET UTF8 COLLATE UTF8,
    HASH CHAR(64) CHARACTER SET ASCII
)^

-- Names of tasks that are paused (PAUSED 1), and of those that go on, and are brought back from being parked (0). No key: a name may be
-- there twice.
CREATE TABLE QUEUE_RULE (
    NAME VARCHAR(255) CHARACTER SET UTF8 NOT NULL COLLATE UTF8,
    PAUSED QUEUE_FLAG
)^

-- Which limits hold back tasks of which queues. A pair may be there twice.
CREATE TABLE QUEUE_LIMIT_USE (
    QUEUE VARCHAR(63) CHARACTER SET ASCII NOT NULL,
    LIMIT_ID INTEGER NOT NULL
)^
CREATE INDEX QUEUE_LIMIT_USE_QUEUE ON QUEUE_LIMIT_USE (QUEUE, LIMIT_ID)^
CREATE INDEX QUEUE_LIMIT_USE_LIMIT ON QUEUE_LIMIT_USE (LIMIT_ID)^

-- The free places of queues with a limit: who enqueues takes one away, and the end of its task gives one back. A number below 0
-- is owed: the limit was lowered below what the queue held, and one place that is given back is not free. No unique key: who
-- gives one back never waits or fails for another one's. The numbers have no meaning; they spread those who look.
CREATE TABLE QUEUE_PLACE (
    QUEUE VARCHAR(63) CHARACTER SET ASCII NOT NULL,
    NO_ INTEGER NOT NULL
)^
CREATE INDEX QUEUE_PLACE_NO ON QUEUE_PLACE (QUEUE, NO_)^

-- When a queue with a window is open: the next weeks, as workers compute them (fbtasks/windows.py).
CREATE TABLE QUEUE_SHIFT (
    QUEUE VARCHAR(63) CHARACTER SET ASCII NOT NULL,
    OPEN_TIME TIMESTAMP NOT NULL,
    CLOSE_TIME TIMESTAMP NOT NULL
)^
CREATE INDEX QUEUE_SHIFT_CLOSE ON QUEUE_SHIFT (QUEUE, CLOSE_TIME)^

-- Finished tasks: succeeded (10), failed (11), cancelled (12).
CREATE TABLE QUEUE_HISTORY (
    ID BIGINT NOT NULL PRIMARY KEY,
    NAME VARCHAR(255) CHARACTER SET UTF8 NOT NULL COLLATE UTF8,
    QUEUE VARCHAR(63) CHARACTER SET ASCII NOT NULL,
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
    TRAITS SMALLINT DEFAULT 0 NOT NULL,
    OWNER_ID INTEGER,
    LANE BIGINT,
    WORKER VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8,
    ENQUEUED_BY VARCHAR(63) CHARACTER SET UTF8 COLLATE UTF8,
    ERROR_TYPE VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8,
    ERROR_MSG BLOB SUB_TYPE TEXT CHARACTER SET UTF8 COLLATE UTF8,
    TRACEBACK BLOB SUB_TYPE TEXT CHARACTER SET UTF8 COLLATE UTF8,
    CONTENT_TYPE VARCHAR(63) CHARACTER SET ASCII NOT NULL,
    PAYLOAD VARCHAR(2000) CHARACTER SET OCTETS,
    -- The result, or for a failure the arguments of its exception. Larger ones are in QUEUE_RESULT.
    RESULT_TYPE VARCHAR(63) CHARACTER SET ASCII,
    RESULT VARCHAR(2000) CHARACTER SET OCTETS
)^
CREATE DESCENDING INDEX QUEUE_HISTORY_STATE ON QUEUE_HISTORY (STATE, FINISH_TIME)^

CREATE TABLE QUEUE_RESULT (
    ID BIGINT NOT NULL PRIMARY KEY,
    DATA BLOB SUB_TYPE BINARY NOT NULL
)^

-- The register of the living: the processes that work on tasks, and those that consume messages. Each renews its lease by
-- heartbeats; of one that is dead the others of its kind take over what it holds.
CREATE TABLE QUEUE_PROCESS (
    ID BIGINT NOT NULL PRIMARY KEY,
    KIND VARCHAR(8) CHARACTER SET ASCII NOT NULL CHECK (KIND IN ('worker', 'consumer')),
    HOST VARCHAR(255) CHARACTER SET UTF8 NOT NULL COLLATE UTF8,
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
    NAME VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8,
    DRAINING BOOLEAN DEFAULT FALSE NOT NULL,
    QUEUES BLOB SUB_TYPE TEXT CHARACTER SET ASCII,
    POOL VARCHAR(31) CHARACTER SET ASCII,
    CONCURRENCY INTEGER,
    VERSION VARCHAR(31) CHARACTER SET ASCII,
    TASKS BLOB SUB_TYPE TEXT CHARACTER SET UTF8 COLLATE UTF8,
    -- Of a consumer: how often a message that it claims may have come back; NULL: any number of times.
    DELIVERY_LIMIT INTEGER
)^
-- A heartbeat changes none of its columns.
CREATE INDEX QUEUE_PROCESS_HOST ON QUEUE_PROCESS (KIND, HOST_KEY, ID)^

-- Counters per hour, queue, worker and slot (0: the worker itself; others: executors that finish in a transaction of their own).
-- Of days long past there is one row a day and queue, of worker 0 and slot 0: see QUEUE_FOLD_STATS_V1.
CREATE TABLE QUEUE_STAT (
    HOUR_TIME TIMESTAMP NOT NULL,
    QUEUE VARCHAR(63) CHARACTER SET ASCII NOT NULL,
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

COMMIT^

-- Has a task leave the gates of its limits: with KIND 'F' because it has ended, with 'B' to wait for another try, when it keeps
-- those that are to be kept. Workers of all queues are woken where others wait.
CREATE OR ALTER PROCEDURE QUEUE_LEAVE_GATES_V1 (
    TASK_ID BIGINT, TRAITS SMALLINT, OWNER_ID INTEGER, LANE BIGINT, KIND CHAR(1) CHARACTER SET ASCII)
SQL SECURITY DEFINER
AS
    DECLARE FAILED SMALLINT;
    DECLARE IS_IN SMALLINT;
    DECLARE QUEUE VARCHAR(63) CHARACTER SET ASCII;
BEGIN
    FAILED = IIF(KIND = 'F' AND RDB$GET_CONTEXT('USER_TRANSACTION', 'FBTASKS_FAILED') = TASK_ID, 1, 0);
    FOR SELECT :OWNER_ID, :LANE, SIGN(BIN_AND(:TRAITS, 512)) FROM RDB$DATABASE WHERE BIN_AND(:TRAITS, 2) = 0
        UNION ALL
        SELECT P.OWNER_ID, P.LANE, P.IS_IN FROM QUEUE_PATH P
            WHERE P.TASK_ID = :TASK_ID AND BIN_AND(:TRAITS, 2) > 0 AND (:KIND = 'F' OR (P.KEEPS = 0 AND P.IS_IN = 1))
        INTO :OWNER_ID, :LANE, :IS_IN DO
    BEGIN
        INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
            VALUES (:OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ,
                CASE WHEN :KIND = 'B' THEN 'B' WHEN :IS_IN = 0 THEN 'G' WHEN :FAILED = 1 THEN 'S' ELSE 'F' END, :LANE, :TASK_ID);
        -- Who waits there from now on, which is not seen here, is found by the one that puts it behind the gate.
        IF (IS_IN = 1 AND EXISTS(SELECT 1 FROM QUEUE_GATE G WHERE G.OWNER_ID = :OWNER_ID AND G.LANE = :LANE AND G.WAITS = 1)) THEN
            FOR SELECT DISTINCT U.QUEUE FROM QUEUE_LIMIT_USE U WHERE U.LIMIT_ID = :OWNER_ID INTO :QUEUE DO
                POST_EVENT 'fbtasks:queue:' || QUEUE;
    END
    IF (BIN_AND(TRAITS, 2) > 0) THEN
        UPDATE QUEUE_PATH P SET IS_IN = 0 WHERE P.TASK_ID = :TASK_ID AND P.IS_IN = 1 AND (:KIND = 'F' OR P.KEEPS = 0);
END^

-- Has a task that runs no longer count for the limit of its queue: KIND is 'F' when it has ended, and 'B' when it is put back.
CREATE OR ALTER PROCEDURE QUEUE_LEAVE_QUEUE_V1 (TASK_ID BIGINT, QUEUE VARCHAR(63) CHARACTER SET ASCII, KIND CHAR(1) CHARACTER SET ASCII)
SQL SECURITY DEFINER
AS
    DECLARE LIMIT_ID INTEGER;
BEGIN
    SELECT P.LIMIT_ID FROM QUEUE_POLICY P WHERE P.QUEUE = :QUEUE INTO :LIMIT_ID;
    IF (LIMIT_ID IS NOT NULL) THEN
        INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
            VALUES (:LIMIT_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, :KIND, 0, :TASK_ID);
    IF (EXISTS(SELECT 1 FROM QUEUE_GATE G WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = 0 AND G.WAITS = 1)) THEN
        POST_EVENT 'fbtasks:queue:' || QUEUE;
    IF (KIND = 'B') THEN
        UPDATE QUEUE_TASK T SET TRAITS = BIN_AND(TRAITS, -8193) WHERE T.ID = :TASK_ID;
END^

-- What is to be done for workflows when a task ends, is put back, or is forgotten. Declared here, where it is called;
-- 0063_workflows.sql has it.
CREATE OR ALTER PROCEDURE QUEUE_STEP_ENDED_V1 (ID BIGINT, TRAITS SMALLINT, STATE SMALLINT)
SQL SECURITY DEFINER
AS
BEGIN
END^

CREATE OR ALTER PROCEDURE QUEUE_STEP_IS_NEEDED_V1 (ID BIGINT)
RETURNS (IS_NEEDED SMALLINT)
SQL SECURITY DEFINER
AS
BEGIN
    IS_NEEDED = 0;
END^

CREATE OR ALTER PROCEDURE QUEUE_STEP_WAITS_V1 (ID BIGINT)
RETURNS (WAITS SMALLINT)
SQL SECURITY DEFINER
AS
BEGIN
    WAITS = 0;
END^

CREATE OR ALTER PROCEDURE QUEUE_REOPEN_STEPS_V1 (ID BIGINT)
SQL SECURITY DEFINER
AS
BEGIN
END^

CREATE OR ALTER PROCEDURE QUEUE_FORGET_STEP_V1 (ID BIGINT)
SQL SECURITY DEFINER
AS
BEGIN
END^

CREATE OR ALTER PROCEDURE QUEUE_FOLD_GROUPS_V1 (FROM_START SMALLINT)
RETURNS (MISSED SMALLINT)
SQL SECURITY DEFINER
AS
BEGIN
    MISSED = 0;
END^

CREATE OR ALTER PROCEDURE QUEUE_GROUPS_READY_V1
RETURNS (READY SMALLINT)
SQL SECURITY DEFINER
AS
BEGIN
    READY = 0;
END^

-- Looks for a task into which a unique call would be merged. Declared here, where it is called; 0057_admission.sql has it.
CREATE OR ALTER PROCEDURE QUEUE_FIND_DUPLICATE_V1 (
    GATES VARCHAR(320) CHARACTER SET ASCII, IS_DUE SMALLINT, PRIORITY_RANK SMALLINT, EXPIRE_TIME TIMESTAMP)
RETURNS (ID BIGINT)
SQL SECURITY DEFINER
AS
BEGIN
END^

-- Keeps DUE_TIME, whichever statement schedules a task or makes it ready: a procedure's, or one that was written by hand.
CREATE OR ALTER TRIGGER QUEUE_TASK_DUE_TIME FOR QUEUE_TASK ACTIVE BEFORE INSERT OR UPDATE POSITION 0
AS
BEGIN
    NEW.DUE_TIME = IIF(NEW.STATE = 1, NEW.START_TIME, NULL);
END^

-- Gives back what a task held, whichever statement has ended it: a procedure's, or one that was written by hand.
CREATE OR ALTER TRIGGER QUEUE_TASK_ENDED FOR QUEUE_TASK ACTIVE AFTER DELETE POSITION 0
SQL SECURITY DEFINER
AS
    DECLARE MAX_LENGTH INTEGER;
    DECLARE WHEN_FULL VARCHAR(11) CHARACTER SET ASCII;
    DECLARE FED SMALLINT;
    DECLARE KIND CHAR(1) CHARACTER SET ASCII;
BEGIN
    IF (BIN_AND(OLD.TRAITS, 2048) > 0) THEN
        EXECUTE PROCEDURE QUEUE_LEAVE_GATES_V1(OLD.ID, OLD.TRAITS, OLD.OWNER_ID, OLD.LANE, 'F');
    IF (BIN_AND(OLD.TRAITS, 8192) > 0) THEN
        EXECUTE PROCEDURE QUEUE_LEAVE_QUEUE_V1(OLD.ID, OLD.QUEUE, 'F');
    IF (OLD.LANE IS NOT NULL AND BIN_AND(OLD.TRAITS, 2050) <> 2048) THEN
    BEGIN
        KIND = CASE
            WHEN RDB$GET_CONTEXT('USER_TRANSACTION', 'FBTASKS_FAILED') = OLD.ID THEN 'S'
            WHEN OLD.STATE = 2 THEN 'F' ELSE 'G' END;
        INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
            VALUES (OLD.OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, :KIND, OLD.LANE, OLD.ID);
        -- Who puts something behind the gate meanwhile, which is not seen here, looks again (QUEUE_DISPATCH_ONE_V1).
        IF (BIN_AND(OLD.TRAITS, 128) = 0 AND (KIND <> 'F' OR BIN_AND(OLD.TRAITS, 256) = 0 OR NOT EXISTS(
                SELECT 1 FROM QUEUE_GATE G WHERE G.OWNER_ID = OLD.OWNER_ID AND G.LANE = OLD.LANE
                    AND G.HOLDER_ID = OLD.ID AND G.WAITS = 0))) THEN
            POST_EVENT 'fbtasks:queue:' || OLD.QUEUE;
    END
    IF (BIN_AND(OLD.TRAITS, 64) > 0) THEN
    BEGIN
        SELECT P.MAX_LENGTH, P.WHEN_FULL, P.FED FROM QUEUE_POLICY P WHERE P.QUEUE = OLD.QUEUE
            INTO :MAX_LENGTH, :WHEN_FULL, :FED;
        IF (MAX_LENGTH IS NOT NULL) THEN
        BEGIN
            INSERT INTO QUEUE_PLACE (QUEUE, NO_) VALUES (OLD.QUEUE, ABS(MOD(OLD.ID, 1000)));
            IF (WHEN_FULL = 'wait') THEN
                POST_EVENT 'fbtasks:room:' || OLD.QUEUE;
            IF (FED = 1) THEN
                POST_EVENT 'fbtasks:queue:' || OLD.QUEUE;
        END
    END
    -- A running task that is deleted has succeeded, unless QUEUE_ARCHIVE_V1 deletes it.
    IF (BIN_AND(OLD.TRAITS, 24) > 0
            AND OLD.ID IS DISTINCT FROM CAST(RDB$GET_CONTEXT('USER_TRANSACTION', 'FBTASKS_FAILED') AS BIGINT)
            AND OLD.ID IS DISTINCT FROM CAST(RDB$GET_CONTEXT('USER_TRANSACTION', 'FBTASKS_CANCELLED') AS BIGINT)) THEN
        EXECUTE PROCEDURE QUEUE_STEP_ENDED_V1(OLD.ID, OLD.TRAITS, IIF(OLD.STATE = 2, 10, NULL));
END^

-- Lets the lane of a failed task go on when the task is discarded.
CREATE OR ALTER TRIGGER QUEUE_HISTORY_DISCARDED FOR QUEUE_HISTORY ACTIVE AFTER DELETE POSITION 0
SQL SECURITY DEFINER
AS
BEGIN
    IF (OLD.LANE IS NOT NULL) THEN
    BEGIN
        INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
            VALUES (OLD.OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, 'D', OLD.LANE, OLD.ID);
        IF (BIN_AND(OLD.TRAITS, 128) = 0) THEN
            POST_EVENT 'fbtasks:queue:' || OLD.QUEUE;
    END
    IF (BIN_AND(OLD.TRAITS, 2) > 0 AND OLD.STATE = 11) THEN
    BEGIN
        INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
            SELECT P.OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, 'D', P.LANE, OLD.ID FROM QUEUE_PATH P WHERE P.TASK_ID = OLD.ID;
        POST_EVENT 'fbtasks:queue:' || OLD.QUEUE;
    END
    -- Not when it was put back into its queue.
    IF (BIN_AND(OLD.TRAITS, 24) > 0 AND NOT EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = OLD.ID)) THEN
        EXECUTE PROCEDURE QUEUE_FORGET_STEP_V1(OLD.ID);
END^

-- Moves a live task to the history, where it replaces what is left of an earlier run if an operator put a finished task
-- back by hand. The caller has checked its claim. The task is deleted before its row of the history is written: of two
-- transactions that end it at once one is in conflict there, and tries again; at the key of the history that would be an error.
-- So the trigger QUEUE_TASK_ENDED, which runs before that row is there, is told how it ends; what follows it in a workflow is told here.
CREATE OR ALTER PROCEDURE QUEUE_ARCHIVE_V1 (
    ID BIGINT, STATE SMALLINT, ELAPSED_MS BIGINT, TRIES INTEGER, ERROR_TYPE VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8,
    ERROR_MSG VARCHAR(1000) CHARACTER SET UTF8 COLLATE UTF8, TRACEBACK VARCHAR(32000) CHARACTER SET OCTETS,
    RESULT_TYPE VARCHAR(63) CHARACTER SET ASCII, RESULT VARCHAR(2000) CHARACTER SET OCTETS)
SQL SECURITY DEFINER
AS
    DECLARE TRACE BLOB SUB_TYPE BINARY;
    DECLARE TRAITS SMALLINT;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE NAME VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8;
    DECLARE QUEUE VARCHAR(63) CHARACTER SET ASCII;
    DECLARE PRIORITY_RANK SMALLINT;
    DECLARE RAISE_TIME TIMESTAMP;
    DECLARE START_TIME TIMESTAMP;
    DECLARE CLAIM_TIME TIMESTAMP;
    DECLARE TRY_COUNT INTEGER;
    DECLARE MAX_TRIES INTEGER;
    DECLARE CRASH_COUNT INTEGER;
    DECLARE WORKER_ID BIGINT;
    DECLARE ENQUEUED_BY VARCHAR(63) CHARACTER SET UTF8 COLLATE UTF8;
    DECLARE CONTENT_TYPE VARCHAR(63) CHARACTER SET ASCII;
    DECLARE PAYLOAD VARCHAR(2000) CHARACTER SET OCTETS;
    DECLARE WAS_SET INTEGER;
BEGIN
    TRACE = TRACEBACK;
    DELETE FROM QUEUE_HISTORY H WHERE H.ID = :ID;
    WAS_SET = RDB$SET_CONTEXT('USER_TRANSACTION', TRIM(IIF(STATE = 11, 'FBTASKS_FAILED', 'FBTASKS_CANCELLED')), ID);
    DELETE FROM QUEUE_TASK T WHERE T.ID = :ID
        RETURNING T.TRAITS, T.OWNER_ID, T.LANE, T.NAME, T.QUEUE, T.PRIORITY_RANK, T.RAISE_TIME, T.START_TIME, T.CLAIM_TIME,
            T.TRY_COUNT, T.MAX_TRIES, T.CRASH_COUNT, T.WORKER_ID, T.ENQUEUED_BY, T.CONTENT_TYPE, T.PAYLOAD
        INTO :TRAITS, :OWNER_ID, :LANE, :NAME, :QUEUE, :PRIORITY_RANK, :RAISE_TIME, :START_TIME, :CLAIM_TIME,
            :TRY_COUNT, :MAX_TRIES, :CRASH_COUNT, :WORKER_ID, :ENQUEUED_BY, :CONTENT_TYPE, :PAYLOAD;
    WAS_SET = RDB$SET_CONTEXT('USER_TRANSACTION', TRIM(IIF(STATE = 11, 'FBTASKS_FAILED', 'FBTASKS_CANCELLED')), NULL);
    IF (QUEUE IS NULL) THEN
        EXIT;  -- there is no such task
    INSERT INTO QUEUE_HISTORY (ID, TRAITS, OWNER_ID, LANE, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME,
        CLAIM_TIME, FINISH_TIME, ELAPSED_MS, TRY_COUNT, MAX_TRIES, CRASH_COUNT, WORKER, ENQUEUED_BY,
        ERROR_TYPE, ERROR_MSG, TRACEBACK, CONTENT_TYPE, PAYLOAD, RESULT_TYPE, RESULT)
    VALUES (:ID, :TRAITS, :OWNER_ID, :LANE, :NAME, :QUEUE, :STATE, :PRIORITY_RANK, :RAISE_TIME, :START_TIME,
        :CLAIM_TIME, QUEUE_NOW(), :ELAPSED_MS, :TRY_COUNT + :TRIES, :MAX_TRIES,
        :CRASH_COUNT, (SELECT W.NAME FROM QUEUE_PROCESS W WHERE W.ID = :WORKER_ID), :ENQUEUED_BY,
        :ERROR_TYPE, :ERROR_MSG, :TRACE, :CONTENT_TYPE, :PAYLOAD, :RESULT_TYPE, :RESULT);
    POST_EVENT 'fbtasks:result:' || MOD(ID, 15);
    IF (BIN_AND(TRAITS, 24) > 0) THEN
        EXECUTE PROCEDURE QUEUE_STEP_ENDED_V1(ID, TRAITS, STATE);
END^

CREATE EXCEPTION QUEUE_FULL 'the queue is full'^

-- Pays what is owed of the places of QUEUE with free ones. OWED is 1 when some stays owed, so that no place is to be taken.
CREATE OR ALTER PROCEDURE QUEUE_PAY_PLACES_V1 (QUEUE VARCHAR(63) CHARACTER SET ASCII)
RETURNS (OWED SMALLINT)
SQL SECURITY DEFINER
AS
    DECLARE NO_ INTEGER;
    DECLARE PAID SMALLINT;
BEGIN
    FOR SELECT P.NO_ FROM QUEUE_PLACE P WHERE P.QUEUE = :QUEUE AND P.NO_ < 0
        FOR UPDATE WITH LOCK SKIP LOCKED INTO :NO_ AS CURSOR DEBT DO
    BEGIN
        PAID = 0;
        FOR SELECT P.NO_ FROM QUEUE_PLACE P WHERE P.QUEUE = :QUEUE AND P.NO_ >= 0
            FOR UPDATE WITH LOCK SKIP LOCKED INTO :NO_ AS CURSOR FREE DO
        BEGIN
            DELETE FROM QUEUE_PLACE WHERE CURRENT OF FREE;
            PAID = 1;
            LEAVE;
        END
        IF (PAID = 0) THEN
            LEAVE;
        DELETE FROM QUEUE_PLACE WHERE CURRENT OF DEBT;
    END
    OWED = IIF(EXISTS(SELECT 1 FROM QUEUE_PLACE P WHERE P.QUEUE = :QUEUE AND P.NO_ < 0 ORDER BY P.QUEUE, P.NO_), 1, 0);
END^

-- Takes a free place of QUEUE away. TAKEN is 0 when there is none that this transaction can see and no other one holds: one that was
-- given back is not seen before that is committed, in a SNAPSHOT transaction not at all. From a random number on, and then from
-- the first one, so that those who look at once do not meet. Nothing here waits for another transaction; where one is in the way
-- nevertheless (embedded, by the lock of a page), it is looked again.
CREATE OR ALTER PROCEDURE QUEUE_PICK_PLACE_V1 (QUEUE VARCHAR(63) CHARACTER SET ASCII)
RETURNS (TAKEN SMALLINT)
SQL SECURITY DEFINER
AS
    DECLARE FIRST_NO INTEGER;
    DECLARE PASSES INTEGER = 0;
    DECLARE NO_ INTEGER;
    DECLARE OWED SMALLINT = 0;
BEGIN
    TAKEN = 0;
    FIRST_NO = FLOOR(RAND() * 1000);
    WHILE (TAKEN = 0 AND OWED = 0 AND PASSES < 4) DO
    BEGIN
        BEGIN
            IF (EXISTS(SELECT 1 FROM QUEUE_PLACE P WHERE P.QUEUE = :QUEUE AND P.NO_ < 0 ORDER BY P.QUEUE, P.NO_)) THEN
                EXECUTE PROCEDURE QUEUE_PAY_PLACES_V1(QUEUE) RETURNING_VALUES OWED;
            IF (OWED = 0) THEN
                FOR SELECT P.NO_ FROM QUEUE_PLACE P WHERE P.QUEUE = :QUEUE AND P.NO_ >= :FIRST_NO
                    ORDER BY P.QUEUE, P.NO_ FOR UPDATE WITH LOCK SKIP LOCKED INTO :NO_ AS CURSOR FREE DO
                BEGIN
                    DELETE FROM QUEUE_PLACE WHERE CURRENT OF FREE;
                    TAKEN = 1;
                    LEAVE;
                END
            PASSES = PASSES + IIF(FIRST_NO = 0, 4, 1);
            WHEN GDSCODE DEADLOCK, GDSCODE UPDATE_CONFLICT, GDSCODE LOCK_CONFLICT DO
                PASSES = PASSES + 1;
        END
        FIRST_NO = 0;
    END
END^

-- Cancels the task of QUEUE that has been ready for longest, whatever its priority; that gives back its place. What a source has
-- brought is not dropped. DROPPED is 0 when there is none that no other transaction holds.
CREATE OR ALTER PROCEDURE QUEUE_DROP_OLDEST_V1 (QUEUE VARCHAR(63) CHARACTER SET ASCII)
RETURNS (DROPPED SMALLINT)
SQL SECURITY DEFINER
AS
    DECLARE RANK SMALLINT = -9999;
    DECLARE OLDEST_RANK SMALLINT;
    DECLARE START_TIME TIMESTAMP;
    DECLARE OLDEST_TIME TIMESTAMP;
    DECLARE ID BIGINT;
BEGIN
    DROPPED = 0;
    WHILE (RANK IS NOT NULL) DO
    BEGIN
        START_TIME = NULL;
        SELECT FIRST 1 T.PRIORITY_RANK, T.START_TIME FROM QUEUE_TASK T
            WHERE T.STATE = 0 AND T.QUEUE = :QUEUE AND T.PRIORITY_RANK >= :RANK AND T.OWNER_ID IS NULL
            ORDER BY T.STATE, T.QUEUE, T.PRIORITY_RANK, T.START_TIME, T.ID INTO :RANK, :START_TIME;
        IF (START_TIME < COALESCE(OLDEST_TIME, TIMESTAMP '9999-12-31')) THEN
        BEGIN
            OLDEST_TIME = START_TIME;
            OLDEST_RANK = RANK;
        END
        RANK = IIF(START_TIME IS NULL OR RANK = 9999, NULL, RANK + 1);
    END
    FOR SELECT T.ID FROM QUEUE_TASK T WHERE T.STATE = 0 AND T.QUEUE = :QUEUE AND T.PRIORITY_RANK = :OLDEST_RANK
            AND T.OWNER_ID IS NULL
        ORDER BY T.STATE, T.QUEUE, T.PRIORITY_RANK, T.START_TIME, T.ID
        FOR UPDATE WITH LOCK SKIP LOCKED INTO :ID AS CURSOR OLDEST DO
    BEGIN
        EXECUTE PROCEDURE QUEUE_ARCHIVE_V1(ID, 12, NULL, 0, NULL, 'dropped: the queue is full', NULL, NULL, NULL);
        DROPPED = 1;
        LEAVE;
    END
END^

-- Takes a place for one more task of a queue with a limit, as its policy says. TAKEN is 0 when the new task is to be dropped; the
-- exception QUEUE_FULL says that it cannot be enqueued.
CREATE OR ALTER PROCEDURE QUEUE_TAKE_PLACE_V1 (
    QUEUE VARCHAR(63) CHARACTER SET ASCII, MAX_LENGTH INTEGER, WHEN_FULL VARCHAR(11) CHARACTER SET ASCII)
RETURNS (TAKEN SMALLINT)
SQL SECURITY DEFINER
AS
    DECLARE DROPPED SMALLINT = 1;
BEGIN
    EXECUTE PROCEDURE QUEUE_PICK_PLACE_V1(QUEUE) RETURNING_VALUES TAKEN;
    WHILE (TAKEN = 0 AND DROPPED = 1 AND WHEN_FULL = 'drop_oldest') DO
    BEGIN
        EXECUTE PROCEDURE QUEUE_DROP_OLDEST_V1(QUEUE) RETURNING_VALUES DROPPED;
        IF (DROPPED = 1) THEN
            EXECUTE PROCEDURE QUEUE_PICK_PLACE_V1(QUEUE) RETURNING_VALUES TAKEN;
    END
    IF (TAKEN = 0 AND WHEN_FULL <> 'drop_newest') THEN
        EXCEPTION QUEUE_FULL 'the queue ' || QUEUE || ' is full: it may hold ' || MAX_LENGTH
            || TRIM(TRAILING FROM IIF(MAX_LENGTH = 1, ' task that has', ' tasks that have')) || ' not ended'
            || TRIM(TRAILING FROM IIF(WHEN_FULL = 'drop_oldest', ', and none of them waits to be dropped', ''))
            || '. Enqueue the task again when some have ended, or raise the max_length of the queue.';
END^

-- Notes the id that a caller gave. When the caller's transaction sees that it is known already, DUPLICATE is 1 and ID the
-- task that has it. When another transaction has it that this one does not see, the violation of QUEUE_TASK_ID_TAKEN is the
-- answer: that transaction may still roll back, and without WAIT the engine says so before it has ended. It is not caught
-- here: measured with NO WAIT, where it was caught and others deleted keys meanwhile, one key came to stand twice within
-- seconds; where it was not, never in 32,000 transactions. A task that was cancelled loses its id to the new one, and stays
-- in the history under its number. Its row is changed first: a transaction that puts it back into its queue, or takes its id,
-- at the same moment is in conflict.
CREATE OR ALTER PROCEDURE QUEUE_NAME_TASK_V1 (TASK_ID VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8, NEW_ID BIGINT)
RETURNS (ID BIGINT, DUPLICATE SMALLINT)
SQL SECURITY DEFINER
AS
BEGIN
    DUPLICATE = 0;
    SELECT T.ID FROM QUEUE_TASK_ID T WHERE T.TASK_HASH = CRYPT_HASH(:TASK_ID USING SHA256) INTO :ID;
    IF (ID IS NULL) THEN
    BEGIN
        ID = NEW_ID;
        INSERT INTO QUEUE_TASK_ID (TASK_ID, ID, TASK_HASH)
        VALUES (:TASK_ID, :ID, CRYPT_HASH(:TASK_ID USING SHA256));
    END
    ELSE
    BEGIN
        DUPLICATE = 1;
        UPDATE QUEUE_HISTORY H SET TRAITS = BIN_AND(TRAITS, -2) WHERE H.ID = :ID AND H.STATE = 12;
        IF (ROW_COUNT = 1) THEN
        BEGIN
            UPDATE QUEUE_TASK_ID T SET ID = :NEW_ID WHERE T.TASK_HASH = CRYPT_HASH(:TASK_ID USING SHA256);
            ID = NEW_ID;
            DUPLICATE = 0;
        END
    END
END^

-- The door for plain SQL: enqueues the task NAME with JSON arguments. START_TIME may carry a time zone; without one
-- it is in the session's. Wakes the workers when the transaction commits.
CREATE OR ALTER PROCEDURE QUEUE_ENQUEUE_V1 (
    NAME VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8,
    ARGS BLOB SUB_TYPE TEXT CHARACTER SET UTF8 COLLATE UTF8 = '[]',
    KWARGS BLOB SUB_TYPE TEXT CHARACTER SET UTF8 COLLATE UTF8 = '{}',
    START_TIME TIMESTAMP WITH TIME ZONE = NULL,
    QUEUE VARCHAR(63) CHARACTER SET ASCII = 'default',
    PRIORITY SMALLINT = 0,
    TASK_ID VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8 = NULL)
RETURNS (ID BIGINT, DUPLICATE SMALLINT)
SQL SECURITY DEFINER
AS
    DECLARE BODY BLOB SUB_TYPE BINARY;
    DECLARE SHORT_BODY VARCHAR(2000) CHARACTER SET OCTETS;
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE START_UTC TIMESTAMP;
    DECLARE MAX_LENGTH INTEGER;
    DECLARE WHEN_FULL VARCHAR(11) CHARACTER SET ASCII;
    DECLARE PLACED SMALLINT = 0;
BEGIN
    NOW_UTC = QUEUE_NOW();
    START_UTC = COALESCE(QUEUE_UTC(START_TIME), NOW_UTC);
    QUEUE = COALESCE(QUEUE, 'default');
    BODY = '[' || COALESCE(ARGS, '[]') || ',' || COALESCE(KWARGS, '{}') || ']';
    IF (OCTET_LENGTH(BODY) <= 2000) THEN
        SHORT_BODY = CAST(BODY AS VARCHAR(2000) CHARACTER SET OCTETS);
    DUPLICATE = 0;
    ID = NEXT VALUE FOR QUEUE_TASK_SEQ;
    IF (TASK_ID IS NOT NULL) THEN
        EXECUTE PROCEDURE QUEUE_NAME_TASK_V1(TASK_ID, ID) RETURNING_VALUES ID, DUPLICATE;
    IF (DUPLICATE = 0) THEN
    BEGIN
        SELECT P.MAX_LENGTH, P.WHEN_FULL FROM QUEUE_POLICY P WHERE P.QUEUE = :QUEUE INTO :MAX_LENGTH, :WHEN_FULL;
        IF (MAX_LENGTH IS NOT NULL) THEN
            EXECUTE PROCEDURE QUEUE_TAKE_PLACE_V1(QUEUE, MAX_LENGTH, WHEN_FULL) RETURNING_VALUES PLACED;
        INSERT INTO QUEUE_TASK (ID, TRAITS, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, ENQUEUED_BY,
            CONTENT_TYPE, PAYLOAD)
        VALUES (:ID, IIF(:TASK_ID IS NULL, 0, 1) + 64 * :PLACED, :NAME, :QUEUE, IIF(:START_UTC > :NOW_UTC, 1, 0),
            -COALESCE(:PRIORITY, 0), :NOW_UTC, :START_UTC, CURRENT_USER, 'application/json', :SHORT_BODY);
        IF (SHORT_BODY IS NULL) THEN
            INSERT INTO QUEUE_PAYLOAD (ID, DATA) VALUES (:ID, :BODY);
        IF (MAX_LENGTH IS NOT NULL AND PLACED = 0) THEN
            EXECUTE PROCEDURE QUEUE_ARCHIVE_V1(ID, 12, NULL, 0, NULL, 'dropped: the queue is full', NULL, NULL, NULL);
        ELSE
            POST_EVENT 'fbtasks:queue:' || QUEUE;
    END
    SUSPEND;
END^

-- Has a task wait before the first of its gates that has not let it in: in state 4, for the turn that a ticket will have.
CREATE OR ALTER PROCEDURE QUEUE_WAIT_AT_GATE_V1 (TASK_ID BIGINT, TRAITS SMALLINT, OWNER_ID INTEGER, LANE BIGINT)
SQL SECURITY DEFINER
AS
BEGIN
    IF (BIN_AND(TRAITS, 2) > 0) THEN
        SELECT FIRST 1 P.OWNER_ID, P.LANE FROM QUEUE_PATH P WHERE P.TASK_ID = :TASK_ID AND P.IS_IN = 0
            ORDER BY P.TASK_ID, P.STEP INTO :OWNER_ID, :LANE;
    UPDATE QUEUE_TASK T SET STATE = 4 WHERE T.ID = :TASK_ID AND T.STATE <> 4;
    INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
        VALUES (:OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, 'T', :LANE, :TASK_ID);
END^

-- Has a task that is to be tried again give back the places that it does not keep. When it is ready, it waits for them anew.
CREATE OR ALTER PROCEDURE QUEUE_WAIT_AGAIN_V1 (TASK_ID BIGINT)
SQL SECURITY DEFINER
AS
    DECLARE TRAITS SMALLINT;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE STATE SMALLINT;
BEGIN
    SELECT T.TRAITS, T.OWNER_ID, T.LANE, T.STATE FROM QUEUE_TASK T WHERE T.ID = :TASK_ID INTO :TRAITS, :OWNER_ID, :LANE, :STATE;
    IF (BIN_AND(TRAITS, 1024) = 0) THEN
    BEGIN
        EXECUTE PROCEDURE QUEUE_LEAVE_GATES_V1(TASK_ID, TRAITS, OWNER_ID, LANE, 'B');
        UPDATE QUEUE_TASK T SET TRAITS = BIN_AND(TRAITS, -513) WHERE T.ID = :TASK_ID;
        IF (STATE = 0) THEN
            EXECUTE PROCEDURE QUEUE_WAIT_AT_GATE_V1(TASK_ID, TRAITS, OWNER_ID, LANE);
    END
END^

-- Gives a task its gates, of 32 characters each: a mark; the limit in 11; the lane in 20. A task that is due waits before the first
-- one. Marks: - and, when it is kept while the task waits for another try, K; of a unique task in their place u and U, or l and L, or r
-- and R, which QUEUE_FIND_DUPLICATE_V1 reads: such a task has a ticket from here on.
CREATE OR ALTER PROCEDURE QUEUE_PUT_BEFORE_GATES_V1 (TASK_ID BIGINT, GATES VARCHAR(320) CHARACTER SET ASCII)
SQL SECURITY DEFINER
AS
    DECLARE STEPS INTEGER;
    DECLARE STEP INTEGER = 0;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE TRAITS SMALLINT;
    DECLARE STATE SMALLINT;
    DECLARE MARK CHAR(1) CHARACTER SET ASCII;
BEGIN
    STEPS = CHAR_LENGTH(GATES) / 32;
    MARK = SUBSTRING(GATES FROM 1 FOR 1);
    OWNER_ID = CAST(SUBSTRING(GATES FROM 2 FOR 11) AS INTEGER);
    LANE = CAST(SUBSTRING(GATES FROM 13 FOR 20) AS BIGINT);
    UPDATE QUEUE_TASK T SET STATE = IIF(T.STATE = 0, 4, T.STATE),
            OWNER_ID = IIF(:STEPS > 1, T.OWNER_ID, COALESCE(T.OWNER_ID, :OWNER_ID)), LANE = IIF(:STEPS > 1 OR T.OWNER_ID IS NOT NULL, T.LANE, :LANE),
            TRAITS = BIN_OR(T.TRAITS, 2048 + IIF(:STEPS > 1 OR T.OWNER_ID IS NOT NULL, 2, IIF(:MARK IN ('K', 'U', 'L', 'R'), 1024, 0)))
        WHERE T.ID = :TASK_ID RETURNING T.TRAITS, T.STATE INTO :TRAITS, :STATE;
    -- The gate of a unique task is the first one (QUEUE_LIMIT.STAGE).
    IF (MARK NOT IN ('-', 'K')) THEN
        INSERT INTO QUEUE_TICKET (OWNER_ID, LANE, TASK_ID) VALUES (:OWNER_ID, :LANE, :TASK_ID);
    WHILE (BIN_AND(TRAITS, 2) > 0 AND STEP < STEPS) DO
    BEGIN
        INSERT INTO QUEUE_PATH (TASK_ID, STEP, KEEPS, OWNER_ID, LANE)
            VALUES (:TASK_ID, :STEP, IIF(SUBSTRING(:GATES FROM 32 * :STEP + 1 FOR 1) IN ('K', 'U', 'L', 'R'), 1, 0),
                CAST(SUBSTRING(:GATES FROM 32 * :STEP + 2 FOR 11) AS INTEGER), CAST(SUBSTRING(:GATES FROM 32 * :STEP + 13 FOR 20) AS BIGINT));
        STEP = STEP + 1;
    END
    IF (STATE = 4) THEN
        EXECUTE PROCEDURE QUEUE_WAIT_AT_GATE_V1(TASK_ID, TRAITS, OWNER_ID, LANE);
END^

-- The door for programs: many calls in one string, so that a hundred tasks cost one round trip. A record is a header of
-- fixed widths (see store/codec.py) and then the values. Returns the number of the transaction in 19 characters, then 20 a call:
-- the id and 0, or 1 for a duplicate: a task that has the TASK_ID, or a unique one into which the call would be merged.
CREATE OR ALTER PROCEDURE QUEUE_ENQUEUE_PACKED_V1 (CALLS VARCHAR(32765) CHARACTER SET OCTETS)
RETURNS (IDS VARCHAR(32765) CHARACTER SET ASCII)
SQL SECURITY DEFINER
AS
    DECLARE AT_BYTE INTEGER = 1;
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE START_TIME TIMESTAMP;
    DECLARE EXPIRE_TIME TIMESTAMP;
    DECLARE MAX_TRIES INTEGER;
    DECLARE PRIORITY SMALLINT;
    DECLARE LEN_QUEUE INTEGER;
    DECLARE LEN_NAME INTEGER;
    DECLARE LEN_TASK_ID INTEGER;
    DECLARE LEN_TYPE INTEGER;
    DECLARE LEN_PAYLOAD INTEGER;
    DECLARE QUEUE VARCHAR(63) CHARACTER SET ASCII;
    DECLARE LAST_QUEUE VARCHAR(63) CHARACTER SET ASCII = '';
    DECLARE NAME VARCHAR(1020) CHARACTER SET OCTETS;
    DECLARE TASK_ID VARCHAR(1020) CHARACTER SET OCTETS;
    DECLARE CONTENT_TYPE VARCHAR(63) CHARACTER SET ASCII;
    DECLARE PAYLOAD VARCHAR(2000) CHARACTER SET OCTETS;
    DECLARE MARK CHAR(1) CHARACTER SET ASCII;
    DECLARE ID BIGINT;
    DECLARE DUPLICATE SMALLINT;
    DECLARE MAX_LENGTH INTEGER;
    DECLARE WHEN_FULL VARCHAR(11) CHARACTER SET ASCII;
    DECLARE PLACED SMALLINT = 0;
    DECLARE GATED SMALLINT;
    DECLARE LEN_GATES INTEGER;
    DECLARE GATES VARCHAR(320) CHARACTER SET ASCII;
    DECLARE KNOWN_ID BIGINT;
BEGIN
    NOW_UTC = QUEUE_NOW();
    IDS = LPAD(CURRENT_TRANSACTION, 19, '0');
    WHILE (AT_BYTE <= OCTET_LENGTH(CALLS)) DO
    BEGIN
        MARK = SUBSTRING(CALLS FROM AT_BYTE FOR 1);
        GATED = IIF(MARK < 'a', 0, 1);  -- in small letters: gates follow the payload
        IF (GATED = 1) THEN
            MARK = UPPER(MARK);
        START_TIME = CASE MARK
            WHEN 'R' THEN DATEADD(CAST(SUBSTRING(CALLS FROM AT_BYTE + 1 FOR 15) AS BIGINT) MILLISECOND TO NOW_UTC)
            WHEN 'A' THEN DATEADD(CAST(SUBSTRING(CALLS FROM AT_BYTE + 1 FOR 15) AS BIGINT) MILLISECOND
                TO TIMESTAMP '1970-01-01') END;
        MARK = SUBSTRING(CALLS FROM AT_BYTE + 16 FOR 1);
        EXPIRE_TIME = CASE MARK
            WHEN 'R' THEN DATEADD(CAST(SUBSTRING(CALLS FROM AT_BYTE + 17 FOR 15) AS BIGINT) MILLISECOND TO NOW_UTC)
            WHEN 'A' THEN DATEADD(CAST(SUBSTRING(CALLS FROM AT_BYTE + 17 FOR 15) AS BIGINT) MILLISECOND
                TO TIMESTAMP '1970-01-01') END;
        PRIORITY = CAST(SUBSTRING(CALLS FROM AT_BYTE + 32 FOR 6) AS SMALLINT);
        MAX_TRIES = NULLIF(CAST(SUBSTRING(CALLS FROM AT_BYTE + 38 FOR 10) AS INTEGER), -1);
        LEN_QUEUE = CAST(SUBSTRING(CALLS FROM AT_BYTE + 48 FOR 3) AS INTEGER);
        LEN_NAME = CAST(SUBSTRING(CALLS FROM AT_BYTE + 51 FOR 4) AS INTEGER);
        LEN_TASK_ID = CAST(SUBSTRING(CALLS FROM AT_BYTE + 55 FOR 4) AS INTEGER);
        LEN_TYPE = CAST(SUBSTRING(CALLS FROM AT_BYTE + 59 FOR 3) AS INTEGER);
        LEN_PAYLOAD = CAST(SUBSTRING(CALLS FROM AT_BYTE + 62 FOR 5) AS INTEGER);
        AT_BYTE = AT_BYTE + 67;
        QUEUE = SUBSTRING(CALLS FROM AT_BYTE FOR LEN_QUEUE);
        AT_BYTE = AT_BYTE + LEN_QUEUE;
        NAME = SUBSTRING(CALLS FROM AT_BYTE FOR LEN_NAME);
        AT_BYTE = AT_BYTE + LEN_NAME;
        TASK_ID = NULL;
        IF (LEN_TASK_ID > 0) THEN
            TASK_ID = SUBSTRING(CALLS FROM AT_BYTE FOR LEN_TASK_ID);
        AT_BYTE = AT_BYTE + LEN_TASK_ID;
        CONTENT_TYPE = SUBSTRING(CALLS FROM AT_BYTE FOR LEN_TYPE);
        AT_BYTE = AT_BYTE + LEN_TYPE;
        PAYLOAD = NULL;
        IF (LEN_PAYLOAD > 0) THEN
            PAYLOAD = SUBSTRING(CALLS FROM AT_BYTE FOR LEN_PAYLOAD);
        AT_BYTE = AT_BYTE + LEN_PAYLOAD;
        GATES = NULL;
        IF (GATED = 1) THEN
        BEGIN
            LEN_GATES = 32 * CAST(SUBSTRING(CALLS FROM AT_BYTE FOR 2) AS INTEGER);
            GATES = SUBSTRING(CALLS FROM AT_BYTE + 2 FOR LEN_GATES);
            AT_BYTE = AT_BYTE + 2 + LEN_GATES;
        END
        -- As QUEUE_ENQUEUE_V1 does it; one procedure for both would cost a fifth of the insert.
        DUPLICATE = 0;
        ID = NEXT VALUE FOR QUEUE_TASK_SEQ;
        IF (TASK_ID IS NOT NULL) THEN
            EXECUTE PROCEDURE QUEUE_NAME_TASK_V1(CAST(TASK_ID AS VARCHAR(255) CHARACTER SET UTF8), ID)
                RETURNING_VALUES ID, DUPLICATE;
        IF (GATED = 1 AND DUPLICATE = 0) THEN
            IF (GATES CONTAINING 'L' OR GATES CONTAINING 'R') THEN
            BEGIN
                EXECUTE PROCEDURE QUEUE_FIND_DUPLICATE_V1(GATES, IIF(START_TIME > NOW_UTC, 0, 1), -PRIORITY, EXPIRE_TIME)
                    RETURNING_VALUES KNOWN_ID;
                IF (KNOWN_ID IS NOT NULL) THEN
                BEGIN
                    ID = KNOWN_ID;
                    DUPLICATE = 1;
                END
            END
        IF (DUPLICATE = 0) THEN
        BEGIN
            START_TIME = COALESCE(START_TIME, NOW_UTC);
            IF (QUEUE <> LAST_QUEUE) THEN
            BEGIN
                POST_EVENT 'fbtasks:queue:' || QUEUE;
                MAX_LENGTH = NULL;
                PLACED = 0;
                SELECT P.MAX_LENGTH, P.WHEN_FULL FROM QUEUE_POLICY P WHERE P.QUEUE = :QUEUE INTO :MAX_LENGTH, :WHEN_FULL;
                LAST_QUEUE = QUEUE;
            END
            IF (MAX_LENGTH IS NOT NULL) THEN
                EXECUTE PROCEDURE QUEUE_TAKE_PLACE_V1(QUEUE, MAX_LENGTH, WHEN_FULL) RETURNING_VALUES PLACED;
            INSERT INTO QUEUE_TASK (ID, TRAITS, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, EXPIRE_TIME,
                MAX_TRIES, ENQUEUED_BY, CONTENT_TYPE, PAYLOAD)
            VALUES (:ID, IIF(:TASK_ID IS NULL, 0, 1) + 64 * :PLACED, CAST(:NAME AS VARCHAR(255) CHARACTER SET UTF8), :QUEUE,
                IIF(:START_TIME > :NOW_UTC, 1, 0), -:PRIORITY, :NOW_UTC, :START_TIME, :EXPIRE_TIME, :MAX_TRIES,
                CURRENT_USER, :CONTENT_TYPE, :PAYLOAD);
            IF (GATED = 1) THEN
                EXECUTE PROCEDURE QUEUE_PUT_BEFORE_GATES_V1(ID, GATES);
            IF (MAX_LENGTH IS NOT NULL AND PLACED = 0) THEN
                EXECUTE PROCEDURE QUEUE_ARCHIVE_V1(ID, 12, NULL, 0, NULL, 'dropped: the queue is full', NULL, NULL, NULL);
        END
        IDS = IDS || LPAD(COALESCE(ID, 0), 19, '0') || DUPLICATE;
    END
    SUSPEND;
END^

-- A payload too large for its row, in the transaction that enqueued it: no caller can give one to another's task.
CREATE OR ALTER PROCEDURE QUEUE_PUT_PAYLOAD_V1 (ID BIGINT, DATA BLOB SUB_TYPE BINARY)
SQL SECURITY DEFINER
AS
BEGIN
    IF (EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :ID AND T.PAYLOAD IS NULL AND T.ENQUEUED_BY = CURRENT_USER
            AND T.RDB$RECORD_VERSION = CURRENT_TRANSACTION)
        OR EXISTS(SELECT 1 FROM QUEUE_HISTORY H  -- it was dropped, and an operator may put it back
            WHERE H.ID = :ID AND H.PAYLOAD IS NULL AND H.STATE = 12 AND H.ENQUEUED_BY = CURRENT_USER
            AND H.RDB$RECORD_VERSION = CURRENT_TRANSACTION
            AND NOT EXISTS(SELECT 1 FROM QUEUE_PAYLOAD P WHERE P.ID = H.ID))) THEN
        INSERT INTO QUEUE_PAYLOAD (ID, DATA) VALUES (:ID, :DATA);
END^

CREATE OR ALTER PROCEDURE QUEUE_PUT_RESULT_V1 (ID BIGINT, CLAIM_ID BIGINT, DATA BLOB SUB_TYPE BINARY)
SQL SECURITY DEFINER
AS
BEGIN
    IF (EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :ID AND T.CLAIM_ID = :CLAIM_ID)) THEN
        UPDATE OR INSERT INTO QUEUE_RESULT (ID, DATA) VALUES (:ID, :DATA) MATCHING (ID);
END^

-- Notes that a suspect is about to begin. DONE is 0 when the claim is stale: it must not begin.
CREATE OR ALTER PROCEDURE QUEUE_START_V1 (ID BIGINT, CLAIM_ID BIGINT)
RETURNS (DONE SMALLINT)
SQL SECURITY DEFINER
AS
BEGIN
    UPDATE QUEUE_TASK T SET STARTED = 1 WHERE T.ID = :ID AND T.CLAIM_ID = :CLAIM_ID AND T.STATE = 2;
    DONE = ROW_COUNT;
    SUSPEND;
END^

-- Whether a running task is to be cancelled. The request is deleted, unless another transaction holds it: then a heartbeat
-- deletes it later. Called by other procedures, when the task's run has ended.
CREATE OR ALTER PROCEDURE QUEUE_TAKE_CANCEL_V1 (ID BIGINT)
RETURNS (REQUESTED SMALLINT)
SQL SECURITY DEFINER
AS
    DECLARE FOUND BIGINT;
BEGIN
    REQUESTED = IIF(EXISTS(SELECT 1 FROM QUEUE_CANCEL C WHERE C.ID = :ID), 1, 0);
    IF (REQUESTED = 1) THEN
        FOR SELECT C.ID FROM QUEUE_CANCEL C WHERE C.ID = :ID FOR UPDATE WITH LOCK SKIP LOCKED INTO :FOUND AS CURSOR W DO
            DELETE FROM QUEUE_CANCEL WHERE CURRENT OF W;
END^

-- Adds to the counters of one hour, queue, worker and slot. Called by other procedures.
CREATE OR ALTER PROCEDURE QUEUE_COUNT_V1 (
    HOUR_TIME TIMESTAMP, QUEUE VARCHAR(63) CHARACTER SET ASCII, WORKER_ID BIGINT, SLOT INTEGER, SUCCEEDED BIGINT,
    FAILED BIGINT, CANCELLED BIGINT, RETRIED BIGINT, RELEASED BIGINT, ELAPSED_MS BIGINT, CONFLICTS BIGINT)
SQL SECURITY DEFINER
AS
BEGIN
    UPDATE OR INSERT INTO QUEUE_STAT (HOUR_TIME, QUEUE, WORKER_ID, SLOT)
        VALUES (:HOUR_TIME, :QUEUE, :WORKER_ID, :SLOT);
    UPDATE QUEUE_STAT S SET SUCCEEDED = SUCCEEDED + :SUCCEEDED, FAILED = FAILED + :FAILED,
        CANCELLED = CANCELLED + :CANCELLED, RETRIED = RETRIED + :RETRIED, RELEASED = RELEASED + :RELEASED,
        ELAPSED_MS = ELAPSED_MS + :ELAPSED_MS, CONFLICTS = CONFLICTS + :CONFLICTS
        WHERE S.HOUR_TIME = :HOUR_TIME AND S.QUEUE = :QUEUE AND S.WORKER_ID = :WORKER_ID AND S.SLOT = :SLOT;
END^

-- Records outcomes, many at once. A record is a header of fixed widths (see store/codec.py), shorter for those that carry
-- no values, and then the values. Each carries its claim: a stale one changes nothing, and its id is returned with the
-- claim that stands (0: none). With a SLOT the caller's transaction may be one that waits: then a task whose row another
-- transaction holds is not waited for. It is returned with its own claim, and nothing is changed.
CREATE OR ALTER PROCEDURE QUEUE_FINISH_V1 (
    WORKER_ID BIGINT, SLOT INTEGER, OUTCOMES VARCHAR(32765) CHARACTER SET OCTETS)
RETURNS (STALE VARCHAR(32765) CHARACTER SET ASCII)
SQL SECURITY DEFINER
AS
    DECLARE AT_BYTE INTEGER = 1;
    DECLARE KIND CHAR(1) CHARACTER SET ASCII;
    DECLARE ID BIGINT;
    DECLARE CLAIM_ID BIGINT;
    DECLARE ELAPSED BIGINT;
    DECLARE DELAY_MS BIGINT;
    DECLARE LEN_ERROR_TYPE INTEGER;
    DECLARE LEN_ERROR INTEGER;
    DECLARE LEN_TRACE INTEGER;
    DECLARE LEN_TYPE INTEGER;
    DECLARE LEN_RESULT INTEGER;
    DECLARE ERROR_TYPE VARCHAR(1020) CHARACTER SET OCTETS;
    DECLARE ERROR_MSG VARCHAR(4000) CHARACTER SET OCTETS;
    DECLARE TRACE VARCHAR(32000) CHARACTER SET OCTETS;
    DECLARE RESULT_TYPE VARCHAR(63) CHARACTER SET ASCII;
    DECLARE RESULT VARCHAR(2000) CHARACTER SET OCTETS;
    DECLARE QUEUE VARCHAR(63) CHARACTER SET ASCII;
    DECLARE LAST_QUEUE VARCHAR(63) CHARACTER SET ASCII;
    DECLARE ANY_REQUEST SMALLINT;
    DECLARE IS_LARGE SMALLINT;
    DECLARE TRAITS SMALLINT;
    DECLARE NAME VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8;
    DECLARE PRIORITY_RANK SMALLINT;
    DECLARE RAISE_TIME TIMESTAMP;
    DECLARE START_TIME TIMESTAMP;
    DECLARE CLAIM_TIME TIMESTAMP;
    DECLARE TRY_COUNT INTEGER;
    DECLARE MAX_TRIES INTEGER;
    DECLARE WORKER VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8;
    DECLARE ENQUEUED_BY VARCHAR(63) CHARACTER SET UTF8 COLLATE UTF8;
    DECLARE CONTENT_TYPE VARCHAR(63) CHARACTER SET ASCII;
    DECLARE PAYLOAD VARCHAR(2000) CHARACTER SET OCTETS;
    DECLARE TRIES INTEGER;
    DECLARE POSTS INTEGER = 0;
    DECLARE AT_BIT INTEGER = 0;
    DECLARE STANDS BIGINT;
    DECLARE CRASH_COUNT INTEGER;
    DECLARE REQUESTED SMALLINT;
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE HOUR_TIME TIMESTAMP;
    DECLARE SUCCEEDED INTEGER = 0;
    DECLARE FAILED INTEGER = 0;
    DECLARE CANCELLED INTEGER = 0;
    DECLARE RETRIED INTEGER = 0;
    DECLARE RELEASED INTEGER = 0;
    DECLARE SUM_ELAPSED BIGINT = 0;
BEGIN
    NOW_UTC = QUEUE_NOW();
    HOUR_TIME = DATEADD(EXTRACT(HOUR FROM NOW_UTC) HOUR TO CAST(CAST(NOW_UTC AS DATE) AS TIMESTAMP));
    STALE = '';
    ANY_REQUEST = IIF(EXISTS(SELECT 1 FROM QUEUE_CANCEL), 1, 0);
    WHILE (AT_BYTE <= OCTET_LENGTH(OUTCOMES)) DO
    BEGIN
        KIND = SUBSTRING(OUTCOMES FROM AT_BYTE FOR 1);
        ID = CAST(SUBSTRING(OUTCOMES FROM AT_BYTE + 1 FOR 19) AS BIGINT);
        CLAIM_ID = CAST(SUBSTRING(OUTCOMES FROM AT_BYTE + 20 FOR 19) AS BIGINT);
        ELAPSED = CAST(SUBSTRING(OUTCOMES FROM AT_BYTE + 39 FOR 15) AS BIGINT);
        IF (KIND IN ('D', 'L', 'P', 'A')) THEN
            AT_BYTE = AT_BYTE + 54;
        ELSE
        BEGIN
            DELAY_MS = CAST(SUBSTRING(OUTCOMES FROM AT_BYTE + 54 FOR 15) AS BIGINT);
            LEN_ERROR_TYPE = CAST(SUBSTRING(OUTCOMES FROM AT_BYTE + 69 FOR 4) AS INTEGER);
            LEN_ERROR = CAST(SUBSTRING(OUTCOMES FROM AT_BYTE + 73 FOR 4) AS INTEGER);
            LEN_TRACE = CAST(SUBSTRING(OUTCOMES FROM AT_BYTE + 77 FOR 5) AS INTEGER);
            LEN_TYPE = CAST(SUBSTRING(OUTCOMES FROM AT_BYTE + 82 FOR 3) AS INTEGER);
            LEN_RESULT = CAST(SUBSTRING(OUTCOMES FROM AT_BYTE + 85 FOR 5) AS INTEGER);
            AT_BYTE = AT_BYTE + 90;
            ERROR_TYPE = NULLIF(SUBSTRING(OUTCOMES FROM AT_BYTE FOR LEN_ERROR_TYPE), '');
            AT_BYTE = AT_BYTE + LEN_ERROR_TYPE;
            ERROR_MSG = IIF(ERROR_TYPE IS NULL AND LEN_ERROR = 0, NULL, SUBSTRING(OUTCOMES FROM AT_BYTE FOR LEN_ERROR));
            AT_BYTE = AT_BYTE + LEN_ERROR;
            TRACE = IIF(LEN_TRACE = 0, NULL, SUBSTRING(OUTCOMES FROM AT_BYTE FOR LEN_TRACE));
            AT_BYTE = AT_BYTE + LEN_TRACE;
            RESULT_TYPE = IIF(LEN_TYPE = 0, NULL, SUBSTRING(OUTCOMES FROM AT_BYTE FOR LEN_TYPE));
            AT_BYTE = AT_BYTE + LEN_TYPE;
            RESULT = IIF(LEN_RESULT = 0, NULL, SUBSTRING(OUTCOMES FROM AT_BYTE FOR LEN_RESULT));
            AT_BYTE = AT_BYTE + LEN_RESULT;
        END
        QUEUE = NULL;
        IF (SLOT > 0) THEN
        BEGIN
            STANDS = NULL;
            SELECT T.ID FROM QUEUE_TASK T WHERE T.ID = :ID FOR UPDATE WITH LOCK SKIP LOCKED INTO :STANDS;
            IF (STANDS IS NULL AND EXISTS(
                    SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :ID AND T.CLAIM_ID = :CLAIM_ID AND T.STATE = 2)) THEN
            BEGIN
                STALE = STALE || LPAD(ID, 19, '0') || LPAD(CLAIM_ID, 19, '0');
                CONTINUE;
            END
        END
        IF (KIND = 'D') THEN
            DELETE FROM QUEUE_TASK T WHERE T.ID = :ID AND T.CLAIM_ID = :CLAIM_ID AND T.STATE = 2
                RETURNING T.QUEUE, IIF(T.PAYLOAD IS NULL, 1, 0), T.TRAITS INTO :QUEUE, :IS_LARGE, :TRAITS;
        ELSE IF (KIND = 'S') THEN
            DELETE FROM QUEUE_TASK T WHERE T.ID = :ID AND T.CLAIM_ID = :CLAIM_ID AND T.STATE = 2
                RETURNING T.QUEUE, IIF(T.PAYLOAD IS NULL, 1, 0), T.TRAITS, T.NAME, T.PRIORITY_RANK, T.RAISE_TIME, T.START_TIME,
                    T.CLAIM_TIME, T.TRY_COUNT, T.MAX_TRIES, T.CRASH_COUNT, T.ENQUEUED_BY,
                    T.CONTENT_TYPE, T.PAYLOAD
                INTO :QUEUE, :IS_LARGE, :TRAITS, :NAME, :PRIORITY_RANK, :RAISE_TIME, :START_TIME, :CLAIM_TIME, :TRY_COUNT,
                    :MAX_TRIES, :CRASH_COUNT, :ENQUEUED_BY, :CONTENT_TYPE, :PAYLOAD;
        ELSE
            SELECT T.QUEUE, IIF(T.PAYLOAD IS NULL, 1, 0), T.TRAITS FROM QUEUE_TASK T
                WHERE T.ID = :ID AND T.CLAIM_ID = :CLAIM_ID AND T.STATE = 2 INTO :QUEUE, :IS_LARGE, :TRAITS;
        IF (QUEUE IS NULL) THEN
        BEGIN
            STANDS = NULL;
            SELECT T.CLAIM_ID FROM QUEUE_TASK T WHERE T.ID = :ID AND T.STATE = 2 INTO :STANDS;
            STALE = STALE || LPAD(ID, 19, '0') || LPAD(COALESCE(STANDS, 0), 19, '0');
            CONTINUE;
        END
        IF (LAST_QUEUE <> QUEUE) THEN
        BEGIN
            EXECUTE PROCEDURE QUEUE_COUNT_V1(HOUR_TIME, LAST_QUEUE, WORKER_ID, SLOT, SUCCEEDED, FAILED, CANCELLED, RETRIED,
                RELEASED, SUM_ELAPSED, 0);
            SUCCEEDED = 0; FAILED = 0; CANCELLED = 0; RETRIED = 0; RELEASED = 0; SUM_ELAPSED = 0;
        END
        LAST_QUEUE = QUEUE;
        SUM_ELAPSED = SUM_ELAPSED + ELAPSED;
        TRIES = 1;
        IF (ANY_REQUEST = 1) THEN
        BEGIN
            EXECUTE PROCEDURE QUEUE_TAKE_CANCEL_V1(ID) RETURNING_VALUES REQUESTED;
            IF (REQUESTED = 1 AND KIND IN ('R', 'L', 'P', 'A', 'W', 'Z', 'G', 'X', 'Y')) THEN
            BEGIN
                -- It ends here; but what was given back, parked or lost with its process has ended no try.
                TRIES = IIF(KIND = 'R', 1, 0);
                IF (KIND = 'X') THEN
                    UPDATE QUEUE_TASK T SET CRASH_COUNT = CRASH_COUNT + 1 WHERE T.ID = :ID;
                KIND = 'C';
                ERROR_TYPE = NULL; TRACE = NULL; RESULT_TYPE = NULL; RESULT = NULL;
                ERROR_MSG = 'cancelled on request';
            END
        END
        IF (BIN_AND(TRAITS, 8192) > 0 AND KIND NOT IN ('S', 'D', 'F', 'C')) THEN
            EXECUTE PROCEDURE QUEUE_LEAVE_QUEUE_V1(ID, QUEUE, 'B');
        IF (KIND IN ('S', 'D')) THEN
        BEGIN
            SUCCEEDED = SUCCEEDED + 1;
            IF (IS_LARGE = 1) THEN
                DELETE FROM QUEUE_PAYLOAD P WHERE P.ID = :ID;
            IF (KIND = 'S') THEN
            BEGIN
                -- As QUEUE_ARCHIVE_V1 does it; this way it costs no call for each task.
                IF (WORKER IS NULL) THEN
                    SELECT W.NAME FROM QUEUE_PROCESS W WHERE W.ID = :WORKER_ID INTO :WORKER;
                INSERT INTO QUEUE_HISTORY (ID, TRAITS, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, CLAIM_TIME,
                    FINISH_TIME, ELAPSED_MS, TRY_COUNT, MAX_TRIES, CRASH_COUNT, WORKER, ENQUEUED_BY,
                    CONTENT_TYPE, PAYLOAD, RESULT_TYPE, RESULT)
                VALUES (:ID, :TRAITS, :NAME, :QUEUE, 10, :PRIORITY_RANK, :RAISE_TIME, :START_TIME, :CLAIM_TIME, :NOW_UTC,
                    :ELAPSED, :TRY_COUNT + 1, :MAX_TRIES, :CRASH_COUNT, :WORKER, :ENQUEUED_BY,
                    :CONTENT_TYPE, :PAYLOAD, :RESULT_TYPE, :RESULT);
            END
            ELSE IF (BIN_AND(TRAITS, 1) = 1) THEN
                DELETE FROM QUEUE_TASK_ID N WHERE N.ID = :ID;
            IF (BIN_AND(TRAITS, 2) > 0) THEN
                DELETE FROM QUEUE_PATH P WHERE P.TASK_ID = :ID;
            POSTS = BIN_OR(POSTS, BIN_SHL(1, MOD(ID, 15)));
        END
        ELSE IF (KIND IN ('F', 'C')) THEN
        BEGIN
            IF (KIND = 'F') THEN
                FAILED = FAILED + 1;
            ELSE
                CANCELLED = CANCELLED + 1;
            EXECUTE PROCEDURE QUEUE_ARCHIVE_V1(ID, IIF(KIND = 'F', 11, 12), ELAPSED, TRIES,
                CAST(ERROR_TYPE AS VARCHAR(255) CHARACTER SET UTF8), CAST(ERROR_MSG AS VARCHAR(1000) CHARACTER SET UTF8),
                TRACE, RESULT_TYPE, RESULT);
        END
        ELSE IF (KIND = 'R') THEN
        BEGIN
            RETRIED = RETRIED + 1;
            UPDATE QUEUE_TASK T SET STATE = IIF(:DELAY_MS > 0, 1, 0), TRY_COUNT = TRY_COUNT + 1,
                START_TIME = DATEADD(:DELAY_MS MILLISECOND TO :NOW_UTC), WORKER_ID = NULL, CLAIM_ID = NULL,
                SUSPECT = 0, STARTED = 0, ERROR_MSG = CAST(:ERROR_MSG AS VARCHAR(1000) CHARACTER SET UTF8)
                WHERE T.ID = :ID;
            IF (BIN_AND(TRAITS, 2048) > 0) THEN
                EXECUTE PROCEDURE QUEUE_WAIT_AGAIN_V1(ID);
            POST_EVENT 'fbtasks:queue:' || QUEUE;
        END
        ELSE IF (KIND IN ('W', 'Z')) THEN
        BEGIN
            -- W: it was claimed outside its task's window, and has not begun. Z: it asked to be run again later.
            RELEASED = RELEASED + 1;
            UPDATE QUEUE_TASK T SET STATE = 1, START_TIME = DATEADD(:DELAY_MS MILLISECOND TO :NOW_UTC), WORKER_ID = NULL,
                CLAIM_ID = NULL, STARTED = 0, SUSPECT = IIF(:KIND = 'Z', 0, SUSPECT) WHERE T.ID = :ID;
            IF (BIN_AND(TRAITS, 2048) > 0) THEN
                EXECUTE PROCEDURE QUEUE_WAIT_AGAIN_V1(ID);
            POST_EVENT 'fbtasks:queue:' || QUEUE;
        END
        ELSE IF (KIND IN ('X', 'Y')) THEN
        BEGIN
            -- X: its process died and it alone can have done it. Y: it ran beside others there. DELAY_MS is the limit.
            UPDATE QUEUE_TASK T SET STATE = 0, WORKER_ID = NULL, CLAIM_ID = NULL, STARTED = 0,
                CRASH_COUNT = CRASH_COUNT + IIF(:KIND = 'X', 1, 0), SUSPECT = MAXVALUE(SUSPECT, 1),
                ERROR_MSG = CAST(:ERROR_MSG AS VARCHAR(1000) CHARACTER SET UTF8)
                WHERE T.ID = :ID RETURNING CRASH_COUNT INTO :CRASH_COUNT;
            IF (KIND = 'X' AND CRASH_COUNT >= DELAY_MS) THEN
            BEGIN
                FAILED = FAILED + 1;
                EXECUTE PROCEDURE QUEUE_ARCHIVE_V1(ID, 11, ELAPSED, 0, 'fbtasks.errors.WorkerLost',
                    SUBSTRING(CAST(ERROR_MSG AS VARCHAR(1000) CHARACTER SET UTF8) FROM 1 FOR 900)
                    || ' (crash ' || CRASH_COUNT || ')', NULL, NULL, NULL);
            END
            ELSE
                POST_EVENT 'fbtasks:queue:' || QUEUE;
        END
        ELSE IF (KIND = 'G') THEN
        BEGIN
            -- It was enqueued without the gates that it has to pass, and has not begun. The message has them.
            RELEASED = RELEASED + 1;
            UPDATE QUEUE_TASK T SET STATE = 0, WORKER_ID = NULL, CLAIM_ID = NULL, STARTED = 0 WHERE T.ID = :ID;
            EXECUTE PROCEDURE QUEUE_PUT_BEFORE_GATES_V1(ID, CAST(ERROR_MSG AS VARCHAR(320) CHARACTER SET ASCII));
            POST_EVENT 'fbtasks:queue:' || QUEUE;
        END
        ELSE IF (KIND = 'A') THEN
        BEGIN
            -- What waited meanwhile has its turn before it.
            UPDATE QUEUE_TASK T SET STATE = 0, START_TIME = :NOW_UTC, WORKER_ID = NULL, CLAIM_ID = NULL, SUSPECT = 0, STARTED = 0
                WHERE T.ID = :ID;
            POST_EVENT 'fbtasks:queue:' || QUEUE;
        END
        ELSE
        BEGIN
            RELEASED = RELEASED + 1;
            UPDATE QUEUE_TASK T SET STATE = IIF(:KIND = 'P', 3, 0), WORKER_ID = NULL, CLAIM_ID = NULL, STARTED = 0
                WHERE T.ID = :ID;
            IF (KIND = 'P') THEN
                POST_EVENT 'fbtasks:parked';
            ELSE
                POST_EVENT 'fbtasks:queue:' || QUEUE;
        END
    END
    IF (LAST_QUEUE IS NOT NULL) THEN
        EXECUTE PROCEDURE QUEUE_COUNT_V1(HOUR_TIME, LAST_QUEUE, WORKER_ID, SLOT, SUCCEEDED, FAILED, CANCELLED, RETRIED,
            RELEASED, SUM_ELAPSED, 0);
    WHILE (BIN_SHL(1, AT_BIT) <= POSTS) DO
    BEGIN
        IF (BIN_AND(POSTS, BIN_SHL(1, AT_BIT)) > 0) THEN
            POST_EVENT 'fbtasks:result:' || AT_BIT;
        AT_BIT = AT_BIT + 1;
    END
    SUSPEND;
END^

-- Puts a failed or cancelled task back into its queue, with tries and crashes counted from the beginning. One that had a lane
-- waits to be let in again. Into a queue that is full none is put back: QUEUE_FULL. What followed it is put back as well, to await its end;
-- a step is not put back before the one that it follows.
CREATE OR ALTER PROCEDURE QUEUE_RETRY_V1 (ID BIGINT)
RETURNS (DONE SMALLINT)
SQL SECURITY DEFINER
AS
    DECLARE QUEUE VARCHAR(63) CHARACTER SET ASCII;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE TRAITS SMALLINT;
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE MAX_LENGTH INTEGER;
    DECLARE PLACED SMALLINT = 0;
    DECLARE LOCKED BIGINT;
    DECLARE WAITS SMALLINT;
BEGIN
    NOW_UTC = QUEUE_NOW();
    SELECT H.ID FROM QUEUE_HISTORY H WHERE H.ID = :ID WITH LOCK INTO :LOCKED;  -- of two at once, one is in conflict
    DONE = 0;
    EXECUTE PROCEDURE QUEUE_STEP_WAITS_V1(ID) RETURNING_VALUES WAITS;
    IF (WAITS = 1) THEN
    BEGIN
        SUSPEND;
        EXIT;
    END
    SELECT P.QUEUE, P.MAX_LENGTH FROM QUEUE_HISTORY H JOIN QUEUE_POLICY P ON P.QUEUE = H.QUEUE
        WHERE H.ID = :ID AND H.STATE IN (11, 12) INTO :QUEUE, :MAX_LENGTH;
    IF (MAX_LENGTH IS NOT NULL) THEN
        EXECUTE PROCEDURE QUEUE_TAKE_PLACE_V1(QUEUE, MAX_LENGTH, 'reject') RETURNING_VALUES PLACED;
    INSERT INTO QUEUE_TASK (ID, TRAITS, OWNER_ID, LANE, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, MAX_TRIES,
        ENQUEUED_BY, CONTENT_TYPE, PAYLOAD)
    SELECT H.ID, BIN_AND(H.TRAITS, -8769) + 64 * :PLACED, H.OWNER_ID, H.LANE, H.NAME, H.QUEUE, IIF(H.LANE IS NULL AND BIN_AND(H.TRAITS, 2048) = 0, 0, 4), H.PRIORITY_RANK, H.RAISE_TIME,
        :NOW_UTC, H.MAX_TRIES, H.ENQUEUED_BY, H.CONTENT_TYPE, H.PAYLOAD
    FROM QUEUE_HISTORY H WHERE H.ID = :ID AND H.STATE IN (11, 12);
    DONE = ROW_COUNT;
    IF (DONE = 1) THEN
    BEGIN
        SELECT H.QUEUE, H.TRAITS, H.OWNER_ID, H.LANE FROM QUEUE_HISTORY H WHERE H.ID = :ID INTO :QUEUE, :TRAITS, :OWNER_ID, :LANE;
        IF (LANE IS NOT NULL AND BIN_AND(TRAITS, 2050) <> 2048) THEN
            INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
                VALUES (:OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, 'T', :LANE, :ID);
        ELSE IF (BIN_AND(TRAITS, 2048) > 0) THEN
            EXECUTE PROCEDURE QUEUE_WAIT_AT_GATE_V1(ID, TRAITS, OWNER_ID, LANE);
        DELETE FROM QUEUE_HISTORY H WHERE H.ID = :ID;
        DELETE FROM QUEUE_RESULT R WHERE R.ID = :ID;
        DELETE FROM QUEUE_CANCEL C WHERE C.ID = :ID;
        IF (BIN_AND(TRAITS, 24) > 0) THEN
            EXECUTE PROCEDURE QUEUE_REOPEN_STEPS_V1(ID);
        POST_EVENT 'fbtasks:queue:' || QUEUE;
    END
    SUSPEND;
END^

-- Forgets up to MOST tasks that ended in STATE more than AGE_MS ago; not those for which a lane is halted, nor those whose
-- results others are going to be given.
CREATE OR ALTER PROCEDURE QUEUE_PRUNE_V1 (STATE SMALLINT, AGE_MS BIGINT, MOST INTEGER)
RETURNS (PRUNED INTEGER)
SQL SECURITY DEFINER
AS
    DECLARE ID BIGINT;
    DECLARE TRAITS SMALLINT;
    DECLARE IS_NEEDED SMALLINT;
    DECLARE LIMIT_TIME TIMESTAMP;
BEGIN
    PRUNED = 0;
    LIMIT_TIME = DATEADD(-AGE_MS MILLISECOND TO QUEUE_NOW());
    FOR SELECT H.ID, H.TRAITS FROM QUEUE_HISTORY H WHERE H.STATE = :STATE AND H.FINISH_TIME < :LIMIT_TIME
            AND (H.LANE IS NULL OR NOT EXISTS(SELECT 1 FROM QUEUE_GATE G
                WHERE G.OWNER_ID = H.OWNER_ID AND G.LANE = H.LANE AND G.HOLDER_ID = H.ID))
            AND (BIN_AND(H.TRAITS, 2) = 0 OR NOT EXISTS(SELECT 1 FROM QUEUE_PATH P JOIN QUEUE_GATE G
                ON G.OWNER_ID = P.OWNER_ID AND G.LANE = P.LANE WHERE P.TASK_ID = H.ID AND G.HOLDER_ID = H.ID AND G.HALTED = 1))
        -- In the order of the index: else each call would look up all that have been kept long enough before its first row.
        ORDER BY H.STATE DESC, H.FINISH_TIME DESC
        FOR UPDATE WITH LOCK SKIP LOCKED INTO :ID, :TRAITS AS CURSOR C DO
    BEGIN
        IF (BIN_AND(TRAITS, 24) > 0) THEN
        BEGIN
            EXECUTE PROCEDURE QUEUE_STEP_IS_NEEDED_V1(ID) RETURNING_VALUES IS_NEEDED;
            IF (IS_NEEDED = 1) THEN
                CONTINUE;
        END
        DELETE FROM QUEUE_HISTORY WHERE CURRENT OF C;
        DELETE FROM QUEUE_PAYLOAD P WHERE P.ID = :ID;
        DELETE FROM QUEUE_RESULT R WHERE R.ID = :ID;
        DELETE FROM QUEUE_TASK_ID N WHERE N.ID = :ID;
        DELETE FROM QUEUE_PATH P WHERE P.TASK_ID = :ID;
        PRUNED = PRUNED + 1;
        IF (PRUNED >= MOST) THEN
            LEAVE;
    END
    SUSPEND;
END^

-- Deletes up to MOST waiting tasks of a queue.
CREATE OR ALTER PROCEDURE QUEUE_PURGE_V1 (QUEUE VARCHAR(63) CHARACTER SET ASCII, MOST INTEGER)
RETURNS (PURGED INTEGER)
SQL SECURITY DEFINER
AS
    DECLARE ID BIGINT;
BEGIN
    PURGED = 0;
    FOR SELECT T.ID FROM QUEUE_TASK T WHERE T.STATE IN (0, 1, 3, 4, 5) AND T.QUEUE = :QUEUE
        -- In the order of the index: else each call would look up all tasks of the queue before its first row.
        ORDER BY T.STATE, T.QUEUE, T.PRIORITY_RANK, T.START_TIME, T.ID
        FOR UPDATE WITH LOCK SKIP LOCKED INTO :ID AS CURSOR C DO
    BEGIN
        DELETE FROM QUEUE_TASK WHERE CURRENT OF C;
        DELETE FROM QUEUE_PAYLOAD P WHERE P.ID = :ID;
        DELETE FROM QUEUE_TASK_ID N WHERE N.ID = :ID;
        DELETE FROM QUEUE_PATH P WHERE P.TASK_ID = :ID;
        PURGED = PURGED + 1;
        IF (PURGED >= MOST) THEN
            LEAVE;
    END
    SUSPEND;
END^

-- What a worker tells the hooks of a task that failed elsewhere; no row when it has not failed, or is not there any more.
CREATE OR ALTER PROCEDURE QUEUE_FAILURE_V1 (ID BIGINT)
RETURNS (TASK_ID VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8, NAME VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8,
    QUEUE VARCHAR(63) CHARACTER SET ASCII, PRIORITY SMALLINT, START_TIME TIMESTAMP, TRY_COUNT INTEGER, MAX_TRIES INTEGER,
    CRASH_COUNT INTEGER, CONTENT_TYPE VARCHAR(63) CHARACTER SET ASCII, PAYLOAD VARCHAR(2000) CHARACTER SET OCTETS,
    ERROR_TYPE VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8, ERROR_MSG BLOB SUB_TYPE TEXT CHARACTER SET UTF8 COLLATE UTF8)
SQL SECURITY DEFINER
AS
BEGIN
    FOR SELECT (SELECT FIRST 1 N.TASK_ID FROM QUEUE_TASK_ID N WHERE N.ID = H.ID), H.NAME, H.QUEUE, -H.PRIORITY_RANK,
            H.START_TIME, H.TRY_COUNT, H.MAX_TRIES, H.CRASH_COUNT, H.CONTENT_TYPE, H.PAYLOAD, H.ERROR_TYPE, H.ERROR_MSG
        FROM QUEUE_HISTORY H WHERE H.ID = :ID AND H.STATE = 11
        INTO :TASK_ID, :NAME, :QUEUE, :PRIORITY, :START_TIME, :TRY_COUNT, :MAX_TRIES, :CRASH_COUNT, :CONTENT_TYPE,
            :PAYLOAD, :ERROR_TYPE, :ERROR_MSG DO
        SUSPEND;
END^

-- Fails up to MOST tasks that have been parked for longer than AGE_MS. One row for each.
CREATE OR ALTER PROCEDURE QUEUE_FAIL_PARKED_V1 (AGE_MS BIGINT, MOST INTEGER)
RETURNS (ID BIGINT)
SQL SECURITY DEFINER
AS
    DECLARE FAILED INTEGER = 0;
    DECLARE NAME VARCHAR(255) CHARACTER SET UTF8 COLLATE UTF8;
    DECLARE LIMIT_TIME TIMESTAMP;
BEGIN
    LIMIT_TIME = DATEADD(-AGE_MS MILLISECOND TO QUEUE_NOW());
    FOR SELECT T.ID, T.NAME FROM QUEUE_TASK T WHERE T.STATE = 3 AND T.CLAIM_TIME < :LIMIT_TIME
            AND NOT EXISTS(SELECT 1 FROM QUEUE_RULE R WHERE R.NAME = T.NAME)
        FOR UPDATE WITH LOCK SKIP LOCKED INTO :ID, :NAME AS CURSOR C DO
    BEGIN
        UPDATE QUEUE_TASK SET CLAIM_TIME = CLAIM_TIME WHERE CURRENT OF C;
        EXECUTE PROCEDURE QUEUE_ARCHIVE_V1(ID, 11, NULL, 0, 'fbtasks.errors.UnknownTaskError',
            'no worker knows a task named ''' || SUBSTRING(NAME FROM 1 FOR 200)
            || ''': start one that imports its module, then retry this task', NULL, NULL, NULL);
        SUSPEND;
        FAILED = FAILED + 1;
        IF (FAILED >= MOST) THEN
            LEAVE;
    END
END^

-- Adds up to MOST rows of counters, of days before the last DAYS whole ones, to one row a day and queue, whose HOUR_TIME is
-- the beginning of the day. In one transaction, so that no sum changes. Workers write the current hour alone; of two that
-- fold at once, the second meets a conflict on its first row.
CREATE OR ALTER PROCEDURE QUEUE_FOLD_STATS_V1 (DAYS INTEGER, MOST INTEGER)
RETURNS (FOLDED INTEGER)
SQL SECURITY DEFINER
AS
    DECLARE LIMIT_TIME TIMESTAMP;
    DECLARE HOUR_TIME TIMESTAMP;
    DECLARE DAY_TIME TIMESTAMP;
    DECLARE QUEUE VARCHAR(63) CHARACTER SET ASCII;
    DECLARE SUCCEEDED BIGINT;
    DECLARE FAILED BIGINT;
    DECLARE CANCELLED BIGINT;
    DECLARE RETRIED BIGINT;
    DECLARE RELEASED BIGINT;
    DECLARE ELAPSED BIGINT;
    DECLARE CONFLICTS BIGINT;
BEGIN
    FOLDED = 0;
    LIMIT_TIME = DATEADD(-DAYS DAY TO CAST(CAST(QUEUE_NOW() AS DATE) AS TIMESTAMP));
    FOR SELECT S.HOUR_TIME, S.QUEUE, S.SUCCEEDED, S.FAILED, S.CANCELLED, S.RETRIED, S.RELEASED, S.ELAPSED_MS, S.CONFLICTS
        FROM QUEUE_STAT S WHERE S.HOUR_TIME < :LIMIT_TIME AND S.WORKER_ID <> 0
        ORDER BY S.HOUR_TIME, S.QUEUE, S.WORKER_ID, S.SLOT FOR UPDATE WITH LOCK
        INTO :HOUR_TIME, :QUEUE, :SUCCEEDED, :FAILED, :CANCELLED, :RETRIED, :RELEASED, :ELAPSED, :CONFLICTS AS CURSOR C DO
    BEGIN
        DAY_TIME = CAST(CAST(HOUR_TIME AS DATE) AS TIMESTAMP);
        EXECUTE PROCEDURE QUEUE_COUNT_V1(DAY_TIME, QUEUE, 0, 0, SUCCEEDED, FAILED, CANCELLED, RETRIED, RELEASED, ELAPSED,
            CONFLICTS);
        DELETE FROM QUEUE_STAT WHERE CURRENT OF C;
        FOLDED = FOLDED + 1;
        IF (FOLDED >= MOST) THEN
            LEAVE;
    END
    SUSPEND;
END^

SET TERM ; ^
