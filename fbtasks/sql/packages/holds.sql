-- What holds a task back beside its time: the lane of the source that it comes from, and the limits that it has to
-- pass, one after the other. A task has a row of QUEUE_HOLD for each. It waits, in state 4, in the line of the first
-- one that has not let it in, and a claim lets it in (feed.sql). These rows are written by whoever writes the row of
-- the task; what is to be told those who let tasks in is a note: so whoever enqueues or ends a task waits for nobody.
SET TERM ^ ;

PACKAGE FBTASKS_CORE^

-- Locks the row of a task in one of STATES, unless another transaction has it: STATE is NULL then, and when there is no
-- such task.
PROCEDURE TRY_LOCK_TASK (ID BIGINT, STATES VARCHAR(6) CHARACTER SET ASCII)
RETURNS (STATE SMALLINT, QUEUE QUEUE_NAME, PRIORITY_RANK SMALLINT, SUSPECT SMALLINT, EXPIRE_TIME TIMESTAMP)
AS
BEGIN
    SELECT T.STATE, T.QUEUE, T.PRIORITY_RANK, T.SUSPECT, T.EXPIRE_TIME FROM QUEUE_TASK T
        WHERE T.ID = :ID AND POSITION(T.STATE IN :STATES) > 0
        FOR UPDATE WITH LOCK SKIP LOCKED INTO :STATE, :QUEUE, :PRIORITY_RANK, :SUSPECT, :EXPIRE_TIME;
END^

-- The state of a task, whose row is locked by this: see TRY_LOCK_TASK.
FUNCTION LOCKED_STATE (ID BIGINT, STATES VARCHAR(6) CHARACTER SET ASCII)
RETURNS SMALLINT
AS
    DECLARE STATE SMALLINT;
    DECLARE QUEUE QUEUE_NAME;
    DECLARE PRIORITY_RANK SMALLINT;
    DECLARE SUSPECT SMALLINT;
    DECLARE EXPIRE_TIME TIMESTAMP;
BEGIN
    EXECUTE PROCEDURE TRY_LOCK_TASK(ID, STATES)
        RETURNING_VALUES STATE, QUEUE, PRIORITY_RANK, SUSPECT, EXPIRE_TIME;
    RETURN STATE;
END^

-- Locks an owner of lanes, a limit or a subscription, unless another transaction has it: READ_ID is NULL then. Whoever
-- has it writes its lanes, and sees all that was done under that lock before. Notes that were read have numbers from
-- READ_ID on to -1, and are deleted in another transaction than the one that has read them: then these numbers are not
-- met again, however old the oldest snapshot is.
PROCEDURE TRY_LOCK_OWNER (OWNER_ID INTEGER)
RETURNS (READ_ID BIGINT, MARK_ID BIGINT, LAST_LANE BIGINT)
AS
    DECLARE DELETED BIGINT;
BEGIN
    SELECT -D.NOTES_READ, D.NOTES_DELETED, D.MARK_ID, D.LAST_LANE FROM QUEUE_DISPATCH D
        WHERE D.SUBSCRIPTION_ID = :OWNER_ID FOR UPDATE WITH LOCK SKIP LOCKED
        INTO :READ_ID, :DELETED, :MARK_ID, :LAST_LANE;
    IF (READ_ID < -DELETED) THEN
        DELETE FROM QUEUE_NOTE N WHERE N.OWNER_ID = :OWNER_ID AND N.ID BETWEEN :READ_ID AND -:DELETED - 1;
END^

-- Notes up to which number the notes of an owner have been read: from the READ_ID that TRY_LOCK_OWNER told,
-- WAS_READ_ID, behind which none is left.
PROCEDURE HAS_READ (OWNER_ID INTEGER, WAS_READ_ID BIGINT, READ_ID BIGINT)
AS
BEGIN
    UPDATE QUEUE_DISPATCH D SET NOTES_READ = -:READ_ID, NOTES_DELETED = -:WAS_READ_ID
        WHERE D.SUBSCRIPTION_ID = :OWNER_ID AND (D.NOTES_READ <> -:READ_ID OR D.NOTES_DELETED <> -:WAS_READ_ID);
END^

-- Notes when the first of the lanes of an owner has its moment, DUE_TIME: the queues that it feeds look at it then.
PROCEDURE SET_DUE_TIME (OWNER_ID INTEGER)
AS
    DECLARE NEXT_TIME TIMESTAMP;
BEGIN
    SELECT FIRST 1 G.WAKE_TIME FROM QUEUE_GATE G
        WHERE G.OWNER_ID = :OWNER_ID AND G.WAKE_TIME >= TIMESTAMP '0001-01-01'
        ORDER BY G.OWNER_ID, G.WAKE_TIME INTO :NEXT_TIME;
    UPDATE QUEUE_FEEDER F SET DUE_TIME = :NEXT_TIME
        WHERE F.OWNER_ID = :OWNER_ID AND F.DUE_TIME IS DISTINCT FROM :NEXT_TIME;
END^

-- Where in the line of a lane a task has its place, SORT_KEY, and tells the workers of QUEUE that it waits there. Where
-- others are before it, as far as the caller sees, that note is read behind all those that may let something in.
PRIVATE PROCEDURE JOIN_LINE (TASK_ID BIGINT, OWNER_ID INTEGER, LANE BIGINT, PRIORITY_RANK SMALLINT, QUEUE QUEUE_NAME)
RETURNS (SORT_KEY SMALLINT)
AS
    DECLARE HAS_LINE SMALLINT = 0;
    DECLARE NOTE_ID BIGINT;
BEGIN
    SORT_KEY = 0;
    SELECT IIF(L.IN_ORDER = 1 OR L.UNIQUE_UNTIL IS NOT NULL, 0, :PRIORITY_RANK),
            IIF(L.BATCH IS NULL AND L.UNIQUE_UNTIL IS NULL, 1, 0)
        FROM QUEUE_LIMIT L WHERE L.ID = :OWNER_ID INTO :SORT_KEY, :HAS_LINE;
    NOTE_ID = NEXT VALUE FOR QUEUE_NOTE_SEQ;
    IF (HAS_LINE = 1 AND EXISTS(SELECT 1 FROM QUEUE_HOLD H WHERE H.OWNER_ID = :OWNER_ID AND H.LANE = :LANE
            AND H.SORT_KEY BETWEEN -9999 AND :SORT_KEY ORDER BY H.OWNER_ID, H.LANE, H.SORT_KEY)) THEN
        NOTE_ID = NOTE_ID + 4611686018427387904;
    INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID, QUEUE)
        VALUES (:OWNER_ID, :NOTE_ID, 'T', :LANE, :TASK_ID, :QUEUE);
END^

-- Tells those who let tasks in at a lane what has become of TASK_ID: 'F' it has ended, 'G' before it ran, 'S' it has
-- failed, 'B' it has given its place back, 'D' it had failed, and is discarded or put back. Each queue whose tasks pass
-- the lane has a note of its own: the first one counts.
PROCEDURE TELL_LANE (OWNER_ID INTEGER, LANE BIGINT, KIND QUEUE_MARK, TASK_ID BIGINT)
AS
    DECLARE QUEUE QUEUE_NAME;
    DECLARE WAKES SMALLINT;
    DECLARE TOLD SMALLINT = 0;
BEGIN
    -- Who joins the line from now on, which is not seen here, wakes workers itself, or looks again.
    WAKES = IIF(KIND IN ('S', 'D')
        OR EXISTS(SELECT 1 FROM QUEUE_HOLD H WHERE H.OWNER_ID = :OWNER_ID AND H.LANE = :LANE
            AND H.SORT_KEY BETWEEN -9999 AND 9999 ORDER BY H.OWNER_ID, H.LANE, H.SORT_KEY)
        OR EXISTS(SELECT 1 FROM QUEUE_GATE G WHERE G.OWNER_ID = :OWNER_ID AND G.LANE = :LANE AND G.WAITS = 1), 1, 0);
    FOR SELECT F.QUEUE FROM QUEUE_FEEDER F WHERE F.OWNER_ID = :OWNER_ID INTO :QUEUE DO
    BEGIN
        INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID, QUEUE)
            VALUES (:OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, IIF(:TOLD = 0, :KIND, 'W'), :LANE, :TASK_ID, :QUEUE);
        TOLD = 1;
        IF (WAKES = 1) THEN
            POST_EVENT 'fbtasks:queue:' || QUEUE;
    END
    IF (TOLD = 0) THEN
        INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
            VALUES (:OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, :KIND, :LANE, :TASK_ID);
END^

-- Puts a task into the line of the first one that has not let it in. WAITS is 0 when there is none.
PROCEDURE NEXT_HOLD (ID BIGINT, PRIORITY_RANK SMALLINT, QUEUE QUEUE_NAME)
RETURNS (WAITS SMALLINT)
AS
    DECLARE STEP SMALLINT;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE SORT_KEY SMALLINT;
BEGIN
    SELECT FIRST 1 H.STEP, H.OWNER_ID, H.LANE FROM QUEUE_HOLD H WHERE H.TASK_ID = :ID AND H.SORT_KEY < 30000
        ORDER BY H.TASK_ID, H.STEP INTO :STEP, :OWNER_ID, :LANE;
    WAITS = IIF(STEP IS NULL, 0, 1);
    IF (WAITS = 1) THEN
    BEGIN
        EXECUTE PROCEDURE JOIN_LINE(ID, OWNER_ID, LANE, PRIORITY_RANK, QUEUE) RETURNING_VALUES SORT_KEY;
        UPDATE QUEUE_HOLD H SET SORT_KEY = :SORT_KEY WHERE H.TASK_ID = :ID AND H.STEP = :STEP;
    END
END^

-- Has a task whose time has come be ready, or wait for what holds it back.
PROCEDURE MAKE_READY (ID BIGINT)
AS
    DECLARE QUEUE QUEUE_NAME;
    DECLARE PRIORITY_RANK SMALLINT;
    DECLARE HAS_HOLDS BOOLEAN;
    DECLARE WAITS SMALLINT = 0;
BEGIN
    SELECT T.QUEUE, T.PRIORITY_RANK, T.HAS_HOLDS OR T.HAS_LANE FROM QUEUE_TASK T WHERE T.ID = :ID
        INTO :QUEUE, :PRIORITY_RANK, :HAS_HOLDS;
    IF (HAS_HOLDS) THEN
        EXECUTE PROCEDURE NEXT_HOLD(ID, PRIORITY_RANK, QUEUE) RETURNING_VALUES WAITS;
    UPDATE QUEUE_TASK T SET STATE = IIF(:WAITS = 1, 4, 0) WHERE T.ID = :ID;
    POST_EVENT 'fbtasks:queue:' || QUEUE;
END^

-- Notes that the lane of an owner has let a task in: it waits for the next one that it has to pass, or else is to be
-- claimed. IS_CLAIMED is 1 when QUEUE, which is asking, is its own. In another queue it becomes ready.
PROCEDURE PASS (
    TASK_ID BIGINT, STEP SMALLINT, HAS_PLACE SMALLINT, TASK_QUEUE QUEUE_NAME, PRIORITY_RANK SMALLINT, SUSPECT SMALLINT,
    QUEUE QUEUE_NAME)
RETURNS (IS_CLAIMED SMALLINT)
AS
    DECLARE WAITS SMALLINT;
BEGIN
    IS_CLAIMED = 0;
    UPDATE QUEUE_HOLD H SET SORT_KEY = IIF(:HAS_PLACE = 1, 30000, 30001) WHERE H.TASK_ID = :TASK_ID AND H.STEP = :STEP;
    EXECUTE PROCEDURE NEXT_HOLD(TASK_ID, PRIORITY_RANK, TASK_QUEUE) RETURNING_VALUES WAITS;
    IF (WAITS = 0 AND TASK_QUEUE = QUEUE AND SUSPECT = 0) THEN
        IS_CLAIMED = 1;
    ELSE IF (WAITS = 0) THEN
    BEGIN
        UPDATE QUEUE_TASK T SET STATE = 0 WHERE T.ID = :TASK_ID;
        POST_EVENT 'fbtasks:queue:' || TASK_QUEUE;
    END
END^

-- Gives a task its limits, of 32 characters each: a mark; the limit in 11; the lane in 20. One that is due waits for
-- the first one from here on. Marks: - and, when the place is kept while the task waits for another try, K; of a unique
-- task in their place u and U, or l and L, or r and R, which FBTASKS_LIMITS.ENQUEUING reads: such a task is found
-- by others before it is due.
PROCEDURE HOLD_BACK (
    TASK_ID BIGINT, GATES VARCHAR(320) CHARACTER SET ASCII, QUEUE QUEUE_NAME, PRIORITY_RANK SMALLINT, IS_DUE SMALLINT)
AS
    DECLARE STEP INTEGER = 0;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE MARK QUEUE_MARK;
    DECLARE SORT_KEY SMALLINT;
BEGIN
    WHILE (32 * STEP < CHAR_LENGTH(GATES)) DO
    BEGIN
        MARK = SUBSTRING(GATES FROM 32 * STEP + 1 FOR 1);
        OWNER_ID = CAST(SUBSTRING(GATES FROM 32 * STEP + 2 FOR 11) AS INTEGER);
        LANE = CAST(SUBSTRING(GATES FROM 32 * STEP + 13 FOR 20) AS BIGINT);
        SORT_KEY = IIF(MARK IN ('-', 'K'), 20000, 0);
        IF (STEP = 0 AND IS_DUE = 1) THEN
            EXECUTE PROCEDURE JOIN_LINE(TASK_ID, OWNER_ID, LANE, PRIORITY_RANK, QUEUE) RETURNING_VALUES SORT_KEY;
        INSERT INTO QUEUE_HOLD (TASK_ID, STEP, OWNER_ID, LANE, SORT_KEY, KEEPS)
            VALUES (:TASK_ID, :STEP, :OWNER_ID, :LANE, :SORT_KEY, IIF(:MARK IN ('K', 'U', 'L', 'R'), 1, 0));
        STEP = STEP + 1;
    END
END^

-- Has a task that is to be tried again, or is parked, give back the places that it does not keep. One that is ready
-- waits for them anew.
PROCEDURE WAIT_AGAIN (ID BIGINT)
AS
    DECLARE STEP SMALLINT;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE SORT_KEY SMALLINT;
BEGIN
    FOR SELECT H.STEP, H.OWNER_ID, H.LANE, H.SORT_KEY FROM QUEUE_HOLD H
        WHERE H.TASK_ID = :ID AND H.SORT_KEY >= 30000 AND H.KEEPS = 0 INTO :STEP, :OWNER_ID, :LANE, :SORT_KEY DO
    BEGIN
        UPDATE QUEUE_HOLD H SET SORT_KEY = 20000 WHERE H.TASK_ID = :ID AND H.STEP = :STEP;
        IF (SORT_KEY = 30000) THEN
            EXECUTE PROCEDURE TELL_LANE(OWNER_ID, LANE, 'B', ID);
    END
    IF (EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :ID AND T.STATE = 0)) THEN
        EXECUTE PROCEDURE MAKE_READY(ID);
END^

-- Gives back what a task held that is not there any more, and was in STATE. What failed or was cancelled may be put
-- back: it keeps what it has to pass, and waits for none of it.
PROCEDURE LEAVE_LINES (ID BIGINT, STATE SMALLINT)
AS
    DECLARE STEP SMALLINT;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE SORT_KEY SMALLINT;
    DECLARE FAILED SMALLINT;
    DECLARE CANCELLED SMALLINT;
BEGIN
    FAILED = IIF(RDB$GET_CONTEXT('USER_TRANSACTION', 'FBTASKS_FAILED') = ID, 1, 0);
    CANCELLED = IIF(RDB$GET_CONTEXT('USER_TRANSACTION', 'FBTASKS_CANCELLED') = ID, 1, 0);
    FOR SELECT H.STEP, H.OWNER_ID, H.LANE, H.SORT_KEY FROM QUEUE_HOLD H WHERE H.TASK_ID = :ID
        INTO :STEP, :OWNER_ID, :LANE, :SORT_KEY DO
    BEGIN
        IF (FAILED + CANCELLED > 0) THEN
            UPDATE QUEUE_HOLD H SET SORT_KEY = 20000 WHERE H.TASK_ID = :ID AND H.STEP = :STEP;
        ELSE
            DELETE FROM QUEUE_HOLD H WHERE H.TASK_ID = :ID AND H.STEP = :STEP;
        IF (SORT_KEY = 30000) THEN
            EXECUTE PROCEDURE TELL_LANE(OWNER_ID, LANE,
                CASE WHEN FAILED = 1 THEN 'S' WHEN STEP = -1 AND STATE <> 2 THEN 'G' ELSE 'F' END, ID);
    END
END^

-- Forgets what a task had to pass that ended in STATE and is discarded, unless it was put back; a lane that is closed
-- since it failed is opened.
PROCEDURE FORGET_HOLDS (ID BIGINT, STATE SMALLINT)
AS
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
BEGIN
    FOR SELECT H.OWNER_ID, H.LANE FROM QUEUE_HOLD H LEFT JOIN QUEUE_LIMIT L ON L.ID = H.OWNER_ID
        WHERE H.TASK_ID = :ID AND (H.STEP = -1 OR (L.STOPS = 1 AND :STATE = 11)) INTO :OWNER_ID, :LANE DO
        EXECUTE PROCEDURE TELL_LANE(OWNER_ID, LANE, 'D', ID);
    IF (NOT EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :ID)) THEN
        DELETE FROM QUEUE_HOLD H WHERE H.TASK_ID = :ID;
END^

SET TERM ; ^
