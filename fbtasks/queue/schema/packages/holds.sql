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
    SELECT STATE, QUEUE, PRIORITY_RANK, SUSPECT, EXPIRE_TIME FROM QUEUE_TASK
        WHERE ID = :ID AND POSITION(STATE IN :STATES) > 0
        FOR UPDATE WITH LOCK SKIP LOCKED INTO :STATE, :QUEUE, :PRIORITY_RANK, :SUSPECT, :EXPIRE_TIME;
END^

-- The class of an exception for people, as kind_of in system/showing.py: without Python's module and without ours.
FUNCTION KIND_OF (ERROR_TYPE QUEUE_TEXT)
RETURNS QUEUE_TEXT
AS
BEGIN
    RETURN REPLACE(REPLACE(ERROR_TYPE, 'builtins.', ''), 'fbtasks.errors.', '');
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

-- Locks an owner of lanes, a limit or a subscription, unless another transaction has it: NULL then. Whoever has it
-- writes its lanes, and sees all that was done under that lock before. Notes that were read have numbers from the one
-- that is returned on to -1. While an old snapshot is there, the engine collects what a row was before only when it is
-- written anew, and no snapshot in between sees that any more. So notes are written once more in the next transaction,
-- and deleted when 500 others were read since: then their first numbers are not met again, though short snapshots come
-- and go.
FUNCTION LOCKED_OWNER (OWNER_ID INTEGER)
RETURNS BIGINT
AS
    DECLARE READ_ID BIGINT;
    DECLARE DELETED BIGINT;
    DECLARE LAST_TX BIGINT;
BEGIN
    SELECT -NOTES_READ, NOTES_DELETED, LAST_TX FROM QUEUE_DISPATCH WHERE SUBSCRIPTION_ID = :OWNER_ID
        FOR UPDATE WITH LOCK SKIP LOCKED INTO :READ_ID, :DELETED, :LAST_TX;
    IF (READ_ID < -DELETED AND LAST_TX <> CURRENT_TRANSACTION) THEN
    BEGIN
        UPDATE QUEUE_NOTE SET KIND = 'W' WHERE OWNER_ID = :OWNER_ID AND ID BETWEEN :READ_ID AND -:DELETED - 1;
        DELETE FROM QUEUE_NOTE
            WHERE OWNER_ID = :OWNER_ID AND ID BETWEEN :READ_ID + 500 AND MINVALUE(499 - :DELETED, -1);
    END
    RETURN READ_ID;
END^

-- Reads up to MOST notes of an owner that is locked, and marks each: it has a number below READ_ID then, and is met no
-- more. What is noted meanwhile is read the next time.
PROCEDURE NOTES (OWNER_ID INTEGER, READ_ID BIGINT, MOST INTEGER)
RETURNS (LAST_READ_ID BIGINT, KIND QUEUE_MARK, LANE BIGINT, TASK_ID BIGINT)
AS
    DECLARE ID BIGINT;
    DECLARE UP_TO_ID BIGINT;
BEGIN
    LAST_READ_ID = READ_ID;
    UP_TO_ID = GEN_ID(QUEUE_NOTE_SEQ, 0);
    FOR SELECT FIRST (:MOST) ID, KIND, LANE, TASK_ID FROM QUEUE_NOTE
        WHERE OWNER_ID = :OWNER_ID AND ID > 0 AND IIF(ID > :UP_TO_ID, ID > 4611686018427387904, TRUE)
        ORDER BY OWNER_ID, ID INTO :ID, :KIND, :LANE, :TASK_ID DO
    BEGIN
        LAST_READ_ID = LAST_READ_ID - 1;
        UPDATE QUEUE_NOTE SET ID = :LAST_READ_ID, QUEUE = NULL WHERE OWNER_ID = :OWNER_ID AND ID = :ID;
        SUSPEND;
    END
END^

-- Notes up to which number the notes of an owner have been read: from the one that LOCKED_OWNER told, WAS_READ_ID,
-- behind which none is left but what the same transaction had read before.
PROCEDURE HAS_READ (OWNER_ID INTEGER, WAS_READ_ID BIGINT, READ_ID BIGINT)
AS
BEGIN
    UPDATE QUEUE_DISPATCH SET NOTES_READ = -:READ_ID, LAST_TX = CURRENT_TRANSACTION,
            NOTES_DELETED = IIF(LAST_TX = CURRENT_TRANSACTION, NOTES_DELETED, -:WAS_READ_ID)
        WHERE SUBSCRIPTION_ID = :OWNER_ID AND (NOTES_READ <> -:READ_ID OR NOTES_DELETED <> -:WAS_READ_ID);
END^

-- Notes when the first of the lanes of an owner has its moment, DUE_TIME: the queues that it feeds look at it then.
PROCEDURE SET_DUE_TIME (OWNER_ID INTEGER)
AS
    DECLARE NEXT_TIME TIMESTAMP;
BEGIN
    SELECT FIRST 1 WAKE_TIME FROM QUEUE_GATE
        WHERE OWNER_ID = :OWNER_ID AND WAKE_TIME >= TIMESTAMP '0001-01-01'
        ORDER BY OWNER_ID, WAKE_TIME INTO :NEXT_TIME;
    UPDATE QUEUE_FEEDER SET DUE_TIME = :NEXT_TIME
        WHERE OWNER_ID = :OWNER_ID AND DUE_TIME IS DISTINCT FROM :NEXT_TIME;
END^

-- Tells the workers of QUEUE that a task waits in a lane, at SORT_KEY of its line if it HAS_LINE (see the hook LINE).
-- Where others are before it, as far as the caller sees, that note is read behind all those that may let something in.
PRIVATE PROCEDURE JOIN_LINE (
    TASK_ID BIGINT, OWNER_ID INTEGER, LANE BIGINT, SORT_KEY SMALLINT, HAS_LINE SMALLINT, QUEUE QUEUE_NAME)
AS
    DECLARE NOTE_ID BIGINT;
    DECLARE LINE_KEY SMALLINT;
    DECLARE LINE_ID BIGINT;
BEGIN
    NOTE_ID = NEXT VALUE FOR QUEUE_NOTE_SEQ;
    IF (HAS_LINE = 1) THEN  -- read from the mark on, as VISIT_LANE does
        SELECT LINE_KEY, LINE_ID FROM QUEUE_GATE WHERE OWNER_ID = :OWNER_ID AND LANE = :LANE
            INTO :LINE_KEY, :LINE_ID;
    IF (HAS_LINE = 1 AND (EXISTS(SELECT 1 FROM QUEUE_HOLD WHERE OWNER_ID = :OWNER_ID AND LANE = :LANE
            AND SORT_KEY = :LINE_KEY AND TASK_ID >= :LINE_ID AND :LINE_KEY <= :SORT_KEY
            ORDER BY OWNER_ID, LANE, SORT_KEY, TASK_ID)
        OR EXISTS(SELECT 1 FROM QUEUE_HOLD WHERE OWNER_ID = :OWNER_ID AND LANE = :LANE
            AND SORT_KEY BETWEEN COALESCE(:LINE_KEY, -10000) + 1 AND :SORT_KEY ORDER BY OWNER_ID, LANE, SORT_KEY))) THEN
        NOTE_ID = NOTE_ID + 4611686018427387904;
    INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID, QUEUE)
        VALUES (:OWNER_ID, :NOTE_ID, IIF(:SORT_KEY < :LINE_KEY, 'U', 'T'), :LANE, :TASK_ID, :QUEUE);
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
    WAKES = IIF(KIND IN ('S', 'D')
        OR EXISTS(SELECT 1 FROM QUEUE_GATE WHERE OWNER_ID = :OWNER_ID AND LANE = :LANE AND WAITS = 1), 1, 0);
    FOR SELECT QUEUE FROM QUEUE_FEEDER WHERE OWNER_ID = :OWNER_ID INTO :QUEUE DO
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
    DECLARE HAS_LINE SMALLINT;
    DECLARE STOPS SMALLINT;
BEGIN
    SELECT FIRST 1 STEP, OWNER_ID, LANE FROM QUEUE_HOLD WHERE TASK_ID = :ID AND SORT_KEY < 30000
        ORDER BY TASK_ID, STEP INTO :STEP, :OWNER_ID, :LANE;
    WAITS = IIF(STEP IS NULL, 0, 1);
    IF (WAITS = 1) THEN
    BEGIN
        EXECUTE PROCEDURE FBTASKS_HOOKS.LINE(OWNER_ID, PRIORITY_RANK) RETURNING_VALUES SORT_KEY, HAS_LINE, STOPS;
        SORT_KEY = COALESCE(SORT_KEY, 0);
        EXECUTE PROCEDURE JOIN_LINE(ID, OWNER_ID, LANE, SORT_KEY, HAS_LINE, QUEUE);
        UPDATE QUEUE_HOLD SET SORT_KEY = :SORT_KEY WHERE TASK_ID = :ID AND STEP = :STEP;
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
    SELECT QUEUE, PRIORITY_RANK, HAS_HOLDS OR HAS_LANE FROM QUEUE_TASK WHERE ID = :ID
        INTO :QUEUE, :PRIORITY_RANK, :HAS_HOLDS;
    IF (HAS_HOLDS) THEN
        EXECUTE PROCEDURE NEXT_HOLD(ID, PRIORITY_RANK, QUEUE) RETURNING_VALUES WAITS;
    UPDATE QUEUE_TASK SET STATE = IIF(:WAITS = 1, 4, 0) WHERE ID = :ID;
    POST_EVENT 'fbtasks:queue:' || QUEUE;
END^

-- Takes a task out of a line, since its queue is paused: it is not looked at any more, until STEP_BACK puts it there.
-- VERDICT: A it was done; L another transaction has the task locked.
PROCEDURE STEP_ASIDE (TASK_ID BIGINT, STEP SMALLINT)
RETURNS (VERDICT QUEUE_MARK)
AS
BEGIN
    VERDICT = IIF(LOCKED_STATE(TASK_ID, '4') IS NULL, 'L', 'A');
    IF (VERDICT = 'A') THEN
        UPDATE QUEUE_HOLD SET SORT_KEY = 10000 WHERE TASK_ID = :TASK_ID AND STEP = :STEP;
END^

-- Puts those back into their lines, from FROM_LANE to LAST_LANE, that stepped aside and whose queues are not paused
-- any more: up to 200 of them, or of lanes, and the rest when the next claim has read a note of it. One that another
-- transaction has locked is tried again when the lane is looked at for it, a second later. Called under the lock of the
-- owner.
PROCEDURE STEP_BACK (OWNER_ID INTEGER, FROM_LANE BIGINT, LAST_LANE BIGINT, QUEUE QUEUE_NAME, NOW_UTC TIMESTAMP)
AS
    DECLARE LANE BIGINT;
    DECLARE MOST INTEGER = 200;
    DECLARE TASK_ID BIGINT;
    DECLARE STEP SMALLINT;
    DECLARE STATE SMALLINT;
    DECLARE TASK_QUEUE QUEUE_NAME;
    DECLARE PRIORITY_RANK SMALLINT;
    DECLARE SUSPECT SMALLINT;
    DECLARE EXPIRE_TIME TIMESTAMP;
    DECLARE SORT_KEY SMALLINT;
    DECLARE HAS_LINE SMALLINT;
    DECLARE STOPS SMALLINT;
    DECLARE LOCKED SMALLINT;
BEGIN
    WHILE (FROM_LANE <= LAST_LANE AND MOST > 0) DO
    BEGIN
        LANE = (SELECT FIRST 1 LANE FROM QUEUE_HOLD
            WHERE OWNER_ID = :OWNER_ID AND LANE BETWEEN :FROM_LANE AND :LAST_LANE
            ORDER BY OWNER_ID, LANE, SORT_KEY, TASK_ID);
        IF (LANE IS NULL) THEN
            EXIT;
        MOST = MOST - 1;
        LOCKED = 0;
        FOR SELECT H.TASK_ID, H.STEP FROM QUEUE_HOLD H
            WHERE H.OWNER_ID = :OWNER_ID AND H.LANE = :LANE AND H.SORT_KEY = 10000
                AND EXISTS(SELECT 1 FROM QUEUE_TASK T LEFT JOIN QUEUE_POLICY P ON P.QUEUE = T.QUEUE
                    WHERE T.ID = H.TASK_ID AND T.STATE = 4 AND COALESCE(P.PAUSED, 0) = 0)
            ORDER BY H.OWNER_ID, H.LANE, H.SORT_KEY, H.TASK_ID INTO :TASK_ID, :STEP DO
        BEGIN
            IF (MOST <= 0) THEN
                LEAVE;
            EXECUTE PROCEDURE TRY_LOCK_TASK(TASK_ID, '4')
                RETURNING_VALUES STATE, TASK_QUEUE, PRIORITY_RANK, SUSPECT, EXPIRE_TIME;
            LOCKED = IIF(STATE IS NULL, 1, LOCKED);
            IF (STATE IS NOT NULL) THEN
            BEGIN
                EXECUTE PROCEDURE FBTASKS_HOOKS.LINE(OWNER_ID, PRIORITY_RANK)
                    RETURNING_VALUES SORT_KEY, HAS_LINE, STOPS;
                SORT_KEY = COALESCE(SORT_KEY, 0);
                EXECUTE PROCEDURE JOIN_LINE(TASK_ID, OWNER_ID, LANE, SORT_KEY, HAS_LINE, TASK_QUEUE);
                UPDATE QUEUE_HOLD SET SORT_KEY = :SORT_KEY WHERE TASK_ID = :TASK_ID AND STEP = :STEP;
                MOST = MOST - 1;
            END
        END
        IF (LOCKED = 1) THEN
        BEGIN
            INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
                VALUES (:OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, 'Q', :LANE, :LANE);
            UPDATE OR INSERT INTO QUEUE_GATE (OWNER_ID, LANE, WAKE_TIME)
                VALUES (:OWNER_ID, :LANE, DATEADD(1 SECOND TO :NOW_UTC)) MATCHING (OWNER_ID, LANE);
        END
        IF (MOST <= 0) THEN
            INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID, QUEUE)
                VALUES (:OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, 'Q', :LANE, :LAST_LANE, :QUEUE);
        IF (LANE = LAST_LANE) THEN
            EXIT;
        FROM_LANE = LANE + 1;  -- not >, which would read all of this one
    END
END^

-- Tells the owners of lines that QUEUE is not paused any more: what stepped aside comes back.
PROCEDURE QUEUE_GOES_ON (QUEUE QUEUE_NAME)
AS
    DECLARE OWNER_ID INTEGER;
    DECLARE SORT_KEY SMALLINT;
    DECLARE HAS_LINE SMALLINT;
    DECLARE STOPS SMALLINT;
BEGIN
    FOR SELECT DISTINCT OWNER_ID FROM QUEUE_FEEDER WHERE QUEUE = :QUEUE INTO :OWNER_ID DO
    BEGIN
        EXECUTE PROCEDURE FBTASKS_HOOKS.LINE(OWNER_ID, 0) RETURNING_VALUES SORT_KEY, HAS_LINE, STOPS;
        IF (HAS_LINE = 1) THEN
            INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID, QUEUE)
                VALUES (:OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, 'Q', 0, 9223372036854775807, :QUEUE);
    END
END^

-- Lets a task in that waits in the line of a lane, whose SORT_KEY there says so. VERDICT: C QUEUE, which is asking, is
-- to claim it; N it waits for the next one that it has to pass, or is ready in another queue; E it had expired, and is
-- cancelled; H it does not wait, by hand; L another transaction has it locked.
PROCEDURE LET_IN (TASK_ID BIGINT, STEP SMALLINT, SORT_KEY SMALLINT, QUEUE QUEUE_NAME, NOW_UTC TIMESTAMP)
RETURNS (VERDICT QUEUE_MARK)
AS
    DECLARE STATE SMALLINT;
    DECLARE TASK_QUEUE QUEUE_NAME;
    DECLARE PRIORITY_RANK SMALLINT;
    DECLARE SUSPECT SMALLINT;
    DECLARE EXPIRE_TIME TIMESTAMP;
    DECLARE WAITS SMALLINT = 0;
BEGIN
    EXECUTE PROCEDURE TRY_LOCK_TASK(TASK_ID, '4')
        RETURNING_VALUES STATE, TASK_QUEUE, PRIORITY_RANK, SUSPECT, EXPIRE_TIME;
    VERDICT = CASE WHEN STATE IS NOT NULL THEN IIF(EXPIRE_TIME <= NOW_UTC, 'E', 'N')
        WHEN EXISTS(SELECT 1 FROM QUEUE_TASK WHERE ID = :TASK_ID AND STATE = 4) THEN 'L' ELSE 'H' END;
    IF (VERDICT = 'E') THEN
        EXECUTE PROCEDURE CANCEL_WAITING(TASK_ID, 'expired before it began');
    ELSE IF (VERDICT <> 'L') THEN
        UPDATE QUEUE_HOLD SET SORT_KEY = IIF(:VERDICT = 'H', 20000, :SORT_KEY)
            WHERE TASK_ID = :TASK_ID AND STEP = :STEP;
    IF (VERDICT = 'N') THEN
    BEGIN
        IF (EXISTS(SELECT 1 FROM QUEUE_HOLD WHERE TASK_ID = :TASK_ID AND STEP > :STEP AND SORT_KEY < 30000)) THEN
            EXECUTE PROCEDURE NEXT_HOLD(TASK_ID, PRIORITY_RANK, TASK_QUEUE) RETURNING_VALUES WAITS;
        IF (WAITS = 0 AND TASK_QUEUE = QUEUE AND SUSPECT = 0) THEN
            VERDICT = 'C';
        ELSE IF (WAITS = 0) THEN
        BEGIN
            UPDATE QUEUE_TASK SET STATE = 0 WHERE ID = :TASK_ID;
            POST_EVENT 'fbtasks:queue:' || TASK_QUEUE;
        END
    END
END^

-- Gives a task its limits, of 32 characters each: a mark; the limit in 11; the lane in 20. One that is due waits for
-- the first one from here on. Marks: - and, when the place is kept while the task waits for another try, K; of a unique
-- task in their place u and U, or l and L, or r and R, which FBTASKS_LIMITS.ENQUEUING reads: such a task is found
-- by others before it is due.
PROCEDURE HOLD_BACK (
    TASK_ID BIGINT, GATES QUEUE_GATES, QUEUE QUEUE_NAME, PRIORITY_RANK SMALLINT, IS_DUE SMALLINT)
AS
    DECLARE STEP INTEGER = 0;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE MARK QUEUE_MARK;
    DECLARE NUMBER BIGINT;
    DECLARE SORT_KEY SMALLINT;
    DECLARE HAS_LINE SMALLINT;
    DECLARE STOPS SMALLINT;
BEGIN
    WHILE (32 * STEP < CHAR_LENGTH(GATES)) DO
    BEGIN
        MARK = SUBSTRING(GATES FROM 32 * STEP + 1 FOR 1);
        NUMBER = SUBSTRING(GATES FROM 32 * STEP + 2 FOR 11);
        EXECUTE PROCEDURE CHECK_NUMBER('the number of a limit', NUMBER, 1, 2147483647);
        OWNER_ID = NUMBER;
        LANE = SUBSTRING(GATES FROM 32 * STEP + 13 FOR 20);
        -- An owner of another kind would take what is noted for something else.
        EXECUTE PROCEDURE FBTASKS_HOOKS.LINE(OWNER_ID, PRIORITY_RANK) RETURNING_VALUES SORT_KEY, HAS_LINE, STOPS;
        IF (HAS_LINE IS NULL) THEN
            IN AUTONOMOUS TRANSACTION DO  -- the caller's may be older than the limit
                EXECUTE PROCEDURE FBTASKS_HOOKS.LINE(OWNER_ID, PRIORITY_RANK)
                    RETURNING_VALUES SORT_KEY, HAS_LINE, STOPS;
        IF (HAS_LINE IS NULL) THEN
            EXCEPTION QUEUE_BAD_CALL 'there is no limit ' || OWNER_ID;
        IF (STEP = 0 AND IS_DUE = 1) THEN
            EXECUTE PROCEDURE JOIN_LINE(TASK_ID, OWNER_ID, LANE, SORT_KEY, HAS_LINE, QUEUE);
        ELSE
            SORT_KEY = IIF(MARK IN ('-', 'K'), 20000, 0);
        INSERT INTO QUEUE_HOLD (TASK_ID, STEP, OWNER_ID, LANE, SORT_KEY, KEEPS)
            VALUES (:TASK_ID, :STEP, :OWNER_ID, :LANE, :SORT_KEY, IIF(:MARK IN ('K', 'U', 'L', 'R'), 1, 0));
        STEP = STEP + 1;
    END
END^

-- Has a task that was moved into QUEUE, where it is in STATE, go on there: claims from QUEUE ask the owners that have
-- to let it in, as far as these are not among TOLD, which has each between commas. In a line it keeps its place.
PROCEDURE FOLLOW_TASK (
    ID BIGINT, STATE SMALLINT, PRIORITY_RANK SMALLINT, QUEUE QUEUE_NAME, TOLD VARCHAR(4000) CHARACTER SET ASCII)
RETURNS (NOW_TOLD VARCHAR(4000) CHARACTER SET ASCII)
AS
    DECLARE OWNER_ID INTEGER;
    DECLARE DONE SMALLINT;
BEGIN
    NOW_TOLD = TOLD;
    FOR SELECT OWNER_ID FROM QUEUE_HOLD WHERE TASK_ID = :ID AND STEP >= 0 INTO :OWNER_ID DO
        IF (POSITION(',' || OWNER_ID || ',' IN NOW_TOLD) = 0) THEN
        BEGIN
            EXECUTE PROCEDURE FEEDS(OWNER_ID, QUEUE) RETURNING_VALUES DONE;
            IF (CHAR_LENGTH(NOW_TOLD) < 3900) THEN
                NOW_TOLD = NOW_TOLD || OWNER_ID || ',';
        END
    IF (STATE = 4) THEN
        EXECUTE PROCEDURE NEXT_HOLD(ID, PRIORITY_RANK, QUEUE) RETURNING_VALUES DONE;
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
    FOR SELECT STEP, OWNER_ID, LANE, SORT_KEY FROM QUEUE_HOLD
        WHERE TASK_ID = :ID AND SORT_KEY >= 30000 AND KEEPS = 0 INTO :STEP, :OWNER_ID, :LANE, :SORT_KEY DO
    BEGIN
        UPDATE QUEUE_HOLD SET SORT_KEY = 20000 WHERE TASK_ID = :ID AND STEP = :STEP;
        IF (SORT_KEY = 30000) THEN
            EXECUTE PROCEDURE TELL_LANE(OWNER_ID, LANE, 'B', ID);
    END
    IF (EXISTS(SELECT 1 FROM QUEUE_TASK WHERE ID = :ID AND STATE = 0)) THEN
        EXECUTE PROCEDURE MAKE_READY(ID);
END^

-- Gives back what a task held that is not there any more, and was in STATE. What ENDED in the history, since it failed
-- or was cancelled, may be put back: it keeps what it has to pass, and waits for none of it.
PROCEDURE LEAVE_LINES (ID BIGINT, STATE SMALLINT, ENDED SMALLINT)
AS
    DECLARE STEP SMALLINT;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE SORT_KEY SMALLINT;
BEGIN
    FOR SELECT STEP, OWNER_ID, LANE, SORT_KEY FROM QUEUE_HOLD WHERE TASK_ID = :ID
        INTO :STEP, :OWNER_ID, :LANE, :SORT_KEY DO
    BEGIN
        IF (ENDED IS NOT NULL) THEN
            UPDATE QUEUE_HOLD SET SORT_KEY = 20000 WHERE TASK_ID = :ID AND STEP = :STEP;
        ELSE
            DELETE FROM QUEUE_HOLD WHERE TASK_ID = :ID AND STEP = :STEP;
        IF (SORT_KEY = 30000 OR (SORT_KEY = 30002 AND (ENDED = 11 OR EXISTS(SELECT 1 FROM QUEUE_GATE
                WHERE OWNER_ID = :OWNER_ID AND LANE = :LANE AND WAITS = 1)))) THEN
            EXECUTE PROCEDURE TELL_LANE(OWNER_ID, LANE,
                CASE WHEN ENDED = 11 THEN 'S' WHEN STEP = -1 AND STATE <> 2 THEN 'G' ELSE 'F' END, ID);
    END
END^

-- Forgets what a task had to pass that ended in STATE and is discarded, unless it was put back; a lane that is closed
-- since it failed is opened.
PROCEDURE FORGET_HOLDS (ID BIGINT, STATE SMALLINT)
AS
    DECLARE STEP SMALLINT;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE SORT_KEY SMALLINT;
    DECLARE HAS_LINE SMALLINT;
    DECLARE STOPS SMALLINT;
BEGIN
    FOR SELECT STEP, OWNER_ID, LANE FROM QUEUE_HOLD WHERE TASK_ID = :ID AND (STEP = -1 OR :STATE = 11)
        INTO :STEP, :OWNER_ID, :LANE DO
    BEGIN
        STOPS = 1;
        IF (STEP <> -1) THEN
            EXECUTE PROCEDURE FBTASKS_HOOKS.LINE(OWNER_ID, 0) RETURNING_VALUES SORT_KEY, HAS_LINE, STOPS;
        IF (STOPS = 1) THEN
            EXECUTE PROCEDURE TELL_LANE(OWNER_ID, LANE, 'D', ID);
    END
    IF (NOT EXISTS(SELECT 1 FROM QUEUE_TASK WHERE ID = :ID)) THEN
        DELETE FROM QUEUE_HOLD WHERE TASK_ID = :ID;
END^

SET TERM ; ^
