-- Sources of work in the database: changes of tables and events, and how they become tasks. The transaction of a
-- change or an event only inserts, into tables without a unique key that a writer chooses: it never waits or fails
-- because of another one. Order, coalescing and limits are decided later, by the workers' FBTASKS_SOURCES.DISPATCH.
SET TERM ^ ;

PACKAGE FBTASKS_SOURCES^

-- Lets the next task in that waits before a gate with a ticket. Tickets of tasks that are not there any more are
-- deleted on the way. TASK_ID is NULL when none has been let in; BLOCKED is 1 when another transaction has the one
-- locked whose turn it is. Called by OPEN_GATE, which writes the row of the gate.
PRIVATE PROCEDURE LET_IN (OWNER_ID INTEGER, LANE BIGINT, NOW_UTC TIMESTAMP)
RETURNS (TASK_ID BIGINT, BLOCKED SMALLINT)
AS
    DECLARE ID BIGINT;
BEGIN
    BLOCKED = 0;
    FOR SELECT K.TASK_ID FROM QUEUE_TICKET K WHERE K.OWNER_ID = :OWNER_ID AND K.LANE = :LANE
        ORDER BY K.OWNER_ID, K.LANE, K.TASK_ID INTO :ID AS CURSOR TICKETS DO
    BEGIN
        TASK_ID = IIF(FBTASKS_CORE.LOCKED_STATE(ID, '4') IS NULL, NULL, ID);
        IF (TASK_ID IS NULL AND EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :ID AND T.STATE = 4)) THEN
            BLOCKED = 1;
        ELSE
            DELETE FROM QUEUE_TICKET WHERE CURRENT OF TICKETS;
        IF (TASK_ID IS NOT NULL) THEN
        BEGIN
            UPDATE QUEUE_TASK T SET START_TIME = :NOW_UTC WHERE T.ID = :TASK_ID;
            EXECUTE PROCEDURE FBTASKS_CORE.MAKE_READY(TASK_ID);
        END
        IF (TASK_ID IS NOT NULL OR BLOCKED = 1) THEN
            LEAVE;
    END
END^

-- Makes a task of changes of one lane in their order: as many as the subscription allows, and as fit. Without a LANE
-- the task holds no gate, and the changes are those of lane 0.
--   FROM_BEHIND  1: of those that wait behind the gate
--   FROM_NEWS    1: of those that have just come, after the former; they begin behind AFTER_ID
--   PLACES       how many places of the queue the caller holds: at least one, or NULL where the queue has no limit
-- TASK_ID is NULL when there are no changes. TAKEN is how many it has, LAST_ID the last of them (AFTER_ID: none), and
-- MORE 1 when it has left some: of those behind the gate with FROM_BEHIND, else of the news. The caller writes the
-- row of the gate.
PRIVATE PROCEDURE MAKE_TASK (
    OWNER_ID INTEGER, LANE BIGINT, FROM_BEHIND SMALLINT, FROM_NEWS SMALLINT, AFTER_ID BIGINT, PLACES INTEGER,
        NOW_UTC TIMESTAMP)
RETURNS (TASK_ID BIGINT, TAKEN INTEGER, LAST_ID BIGINT, MORE SMALLINT)
AS
    DECLARE NAME QUEUE_TEXT;
    DECLARE QUEUE QUEUE_NAME;
    DECLARE PRIORITY_RANK SMALLINT;
    DECLARE MOST INTEGER;
    DECLARE WANTED SMALLINT;
    DECLARE FULL_UP SMALLINT = 0;
    DECLARE ID BIGINT;
    DECLARE RAISE_TIME TIMESTAMP;
    DECLARE FIRST_TIME TIMESTAMP;
    DECLARE DATA QUEUE_INLINE;
    DECLARE LARGE QUEUE_BINARY;
    DECLARE BODY QUEUE_RECORDS = '[[';
    DECLARE LARGE_BODY QUEUE_BINARY;
    DECLARE PLACED SMALLINT = 0;
BEGIN
    TAKEN = 0;
    LAST_ID = AFTER_ID;
    MORE = 0;
    SELECT S.NAME, S.QUEUE, S.PRIORITY_RANK, S.MOST FROM QUEUE_SUBSCRIPTION S WHERE S.ID = :OWNER_ID
        INTO :NAME, :QUEUE, :PRIORITY_RANK, :MOST;
    WANTED = IIF(FROM_BEHIND = 1, NULL, 1);
    WHILE (FULL_UP = 0) DO
    BEGIN
        FOR SELECT C.ID, C.RAISE_TIME, C.DATA, C.LARGE FROM QUEUE_CHANGE C
            WHERE C.SUBSCRIPTION_ID = :OWNER_ID AND C.NEWS IS NOT DISTINCT FROM :WANTED AND C.LANE = COALESCE(:LANE, 0)
                AND C.ID > :AFTER_ID
            ORDER BY C.SUBSCRIPTION_ID, C.NEWS, C.LANE, C.ID INTO :ID, :RAISE_TIME, :DATA, :LARGE AS CURSOR CHANGES DO
        BEGIN
            IF (TAKEN >= MOST OR LARGE_BODY IS NOT NULL OR (TAKEN > 0 AND (DATA IS NULL
                    OR OCTET_LENGTH(BODY) + OCTET_LENGTH(DATA) > 29990))) THEN
            BEGIN
                FULL_UP = 1;
                MORE = IIF(WANTED IS NULL OR FROM_BEHIND = 0, 1, 0);
                LEAVE;
            END
            IF (DATA IS NULL) THEN
                LARGE_BODY = CAST('[[' AS BLOB SUB_TYPE BINARY) || LARGE || '],{}]';
            ELSE
                BODY = BODY || IIF(TAKEN = 0, '', ',') || DATA;
            FIRST_TIME = COALESCE(FIRST_TIME, RAISE_TIME);
            TAKEN = TAKEN + 1;
            LAST_ID = ID;
            DELETE FROM QUEUE_CHANGE WHERE CURRENT OF CHANGES;
        END
        IF (WANTED = 1 OR FROM_NEWS = 0) THEN
            LEAVE;
        WANTED = 1;
    END
    IF (TAKEN = 0) THEN
        EXIT;
    TASK_ID = NEXT VALUE FOR QUEUE_TASK_SEQ;
    IF (LARGE_BODY IS NULL) THEN
    BEGIN
        BODY = BODY || '],{}]';
        LARGE_BODY = IIF(OCTET_LENGTH(BODY) > 2000, BODY, NULL);
    END
    IF (PLACES IS NOT NULL) THEN
        EXECUTE PROCEDURE FBTASKS_QUEUES.PICK_PLACE(QUEUE) RETURNING_VALUES PLACED;  -- of those that the dispatch holds
    INSERT INTO QUEUE_TASK (ID, HAS_PLACE, WAKES, OWNER_ID, LANE, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME,
        START_TIME, CONTENT_TYPE, PAYLOAD)
    VALUES (:TASK_ID, :PLACED = 1, IIF(:LANE IS NULL, 2, 1), :OWNER_ID, :LANE, :NAME, :QUEUE, 0, :PRIORITY_RANK,
        :FIRST_TIME, :NOW_UTC, 'application/json', IIF(:LARGE_BODY IS NULL, :BODY, NULL));
    IF (LARGE_BODY IS NOT NULL) THEN
        INSERT INTO QUEUE_PAYLOAD (ID, DATA) VALUES (:TASK_ID, :LARGE_BODY);
END^

-- Opens a gate whose task has ended, or whose time has come, for what waits behind it: a task with a ticket, else a
-- new one of changes; with NEWS_TOO also of those that have just come. After that the gate (its states are named
-- beside QUEUE_GATE) is
--   shut     behind TASK_ID, the task that is in; TAKEN is how many changes that has when it is a new one
--   waiting  for a second when another transaction has the task locked whose turn it is; with its time come when
--            PLACES is 0, so that there is no place for a new task (NULL: the queue has no limit)
--   free     when nothing waits any more
-- Called by DISPATCH_ONE and READ_NOTES, under the lock of QUEUE_DISPATCH.
PRIVATE PROCEDURE OPEN_GATE (
    OWNER_ID INTEGER, LANE BIGINT, NEWS_TOO SMALLINT, PLACES INTEGER, NOW_UTC TIMESTAMP)
RETURNS (TASK_ID BIGINT, TAKEN INTEGER)
AS
    DECLARE BLOCKED SMALLINT;
    DECLARE MORE SMALLINT = 1;
    DECLARE LAST_ID BIGINT;
    DECLARE WAKE_TIME TIMESTAMP;
BEGIN
    TAKEN = 0;
    EXECUTE PROCEDURE LET_IN(OWNER_ID, LANE, NOW_UTC) RETURNING_VALUES TASK_ID, BLOCKED;
    IF (BLOCKED = 1) THEN
        WAKE_TIME = DATEADD(1 SECOND TO NOW_UTC);
    ELSE IF (TASK_ID IS NULL AND PLACES = 0) THEN
    BEGIN
        IF (EXISTS(SELECT 1 FROM QUEUE_CHANGE C WHERE C.SUBSCRIPTION_ID = :OWNER_ID AND C.NEWS IS NULL
                    AND C.LANE = :LANE ORDER BY C.SUBSCRIPTION_ID, C.NEWS)
                OR (NEWS_TOO = 1 AND EXISTS(SELECT 1 FROM QUEUE_CHANGE C
                    WHERE C.SUBSCRIPTION_ID = :OWNER_ID AND C.NEWS = 1 AND C.LANE = :LANE
                        ORDER BY C.SUBSCRIPTION_ID, C.NEWS))) THEN
            WAKE_TIME = NOW_UTC;
    END
    ELSE IF (TASK_ID IS NULL) THEN
        EXECUTE PROCEDURE MAKE_TASK(OWNER_ID, LANE, 1, NEWS_TOO, 0, PLACES, NOW_UTC)
            RETURNING_VALUES TASK_ID, TAKEN, LAST_ID, MORE;
    IF (TASK_ID IS NULL AND WAKE_TIME IS NULL) THEN
        DELETE FROM QUEUE_GATE G WHERE G.OWNER_ID = :OWNER_ID AND G.LANE = :LANE;
    ELSE
        UPDATE OR INSERT INTO QUEUE_GATE (OWNER_ID, LANE, HOLDER_ID, HALTED, WAITS, WAKE_TIME)
            VALUES (:OWNER_ID, :LANE, :TASK_ID, 0, :MORE, :WAKE_TIME) MATCHING (OWNER_ID, LANE);
END^

-- What goes on when a run of changes ends before its last one; the caller records next, in the same transaction, what
-- became of its task ID. OWN is the payload of that task from now on (NULL: as it was); with TRIES it begins with
-- another change than before, of which so many tries have ended, and whose process has not died. With NEXT the task
-- has failed: a new task NEXT_ID goes on with NEXT. It takes over the lane, or where a failure halts that, waits
-- behind it; when the run is to be cancelled, it is cancelled. A stale claim changes nothing: NEXT_ID is 0. Neither
-- does a task whose row another transaction holds, which is not waited for: -1.
PROCEDURE PUT_REST (ID BIGINT, CLAIM_ID BIGINT, OWN QUEUE_BINARY,
    NEXT QUEUE_BINARY, TRIES INTEGER, NEXT_TRIES INTEGER)
RETURNS (NEXT_ID BIGINT)
AS
    DECLARE QUEUE QUEUE_NAME;
    DECLARE OWNER_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE STOPS SMALLINT = 0;
BEGIN
    IF (FBTASKS_CORE.LOCKED_STATE(ID, '2') IS NOT NULL) THEN
        SELECT T.QUEUE, T.OWNER_ID, T.LANE FROM QUEUE_TASK T WHERE T.ID = :ID AND T.CLAIM_ID = :CLAIM_ID
            INTO :QUEUE, :OWNER_ID, :LANE;
    IF (QUEUE IS NULL) THEN
        NEXT_ID = IIF(EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :ID AND T.CLAIM_ID = :CLAIM_ID AND T.STATE = 2),
            -1, 0);
    ELSE
    BEGIN
        IF (OWN IS NOT NULL) THEN
        BEGIN
            DELETE FROM QUEUE_PAYLOAD P WHERE P.ID = :ID;
            IF (OCTET_LENGTH(OWN) > 2000) THEN
                INSERT INTO QUEUE_PAYLOAD (ID, DATA) VALUES (:ID, :OWN);
            UPDATE QUEUE_TASK T SET PAYLOAD = IIF(OCTET_LENGTH(:OWN) > 2000, NULL, CAST(:OWN AS VARBINARY(2000)))
                WHERE T.ID = :ID;
        END
        IF (TRIES IS NOT NULL) THEN
            UPDATE QUEUE_TASK T SET TRY_COUNT = :TRIES, CRASH_COUNT = 0, SUSPECT = 0, STARTED = 0 WHERE T.ID = :ID;
        IF (NEXT IS NOT NULL) THEN
        BEGIN
            IF (LANE IS NOT NULL) THEN
                SELECT S.STOPS FROM QUEUE_SUBSCRIPTION S WHERE S.ID = :OWNER_ID INTO :STOPS;
            NEXT_ID = NEXT VALUE FOR QUEUE_TASK_SEQ;
            -- With its place, where its queue has a limit.
            INSERT INTO QUEUE_TASK (ID, HAS_PLACE, WAKES, OWNER_ID, LANE, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME,
                START_TIME, TRY_COUNT, ENQUEUED_BY, CONTENT_TYPE, PAYLOAD)
            SELECT :NEXT_ID, T.HAS_PLACE, IIF(T.WAKES = 0, 2, T.WAKES), T.OWNER_ID, T.LANE, T.NAME, T.QUEUE,
                IIF(:STOPS = 1, 4, 0), T.PRIORITY_RANK, T.RAISE_TIME, T.START_TIME, :NEXT_TRIES, T.ENQUEUED_BY,
                T.CONTENT_TYPE,
                IIF(OCTET_LENGTH(:NEXT) > 2000, NULL, CAST(:NEXT AS VARBINARY(2000)))
            FROM QUEUE_TASK T WHERE T.ID = :ID;
            UPDATE QUEUE_TASK T SET HAS_PLACE = FALSE WHERE T.ID = :ID AND T.HAS_PLACE;
            IF (OCTET_LENGTH(NEXT) > 2000) THEN
                INSERT INTO QUEUE_PAYLOAD (ID, DATA) VALUES (:NEXT_ID, :NEXT);
            IF (LANE IS NOT NULL) THEN
                INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID, QUEUE)
                    VALUES (:OWNER_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, IIF(:STOPS = 1, 'T', 'H'), :LANE, :NEXT_ID,
                        :QUEUE);
            IF (EXISTS(SELECT 1 FROM QUEUE_CANCEL C WHERE C.ID = :ID)) THEN
                EXECUTE PROCEDURE FBTASKS_CORE.ARCHIVE(NEXT_ID, 12, NULL, 0, NULL, 'cancelled on request', NULL, NULL,
                    NULL);
            ELSE
                POST_EVENT 'fbtasks:queue:' || QUEUE;
        END
    END
    SUSPEND;
END^

-- Puts what has just come for a lane behind its gate, up to MOST of it: MOVED. A gate that is shut (IS_SHUT) will be
-- opened by a note. Any other one is waiting from then on: until the first change has waited AFTER_MS, or there has
-- been none for QUIET_MS, or with FILLS there are MOST.
PRIVATE PROCEDURE PUT_BEHIND (OWNER_ID INTEGER, LANE BIGINT, IS_SHUT SMALLINT, MOST INTEGER, NOW_UTC TIMESTAMP)
RETURNS (MOVED INTEGER)
AS
    DECLARE BATCH INTEGER;
    DECLARE AFTER_MS BIGINT;
    DECLARE FILLS SMALLINT;
    DECLARE QUIET_MS BIGINT = 0;
    DECLARE FIRST_TIME TIMESTAMP;
    DECLARE LAST_TIME TIMESTAMP;
    DECLARE WAKE_TIME TIMESTAMP;
    DECLARE WAITING INTEGER;
BEGIN
    IF (IS_SHUT = 0) THEN
        SELECT S.MOST, S.AFTER_MS, S.FILLS, S.QUIET_MS FROM QUEUE_SUBSCRIPTION S WHERE S.ID = :OWNER_ID
            INTO :BATCH, :AFTER_MS, :FILLS, :QUIET_MS;
    IF (QUIET_MS > 0) THEN
        SELECT MAX(C.RAISE_TIME) FROM QUEUE_CHANGE C
            WHERE C.SUBSCRIPTION_ID = :OWNER_ID AND C.NEWS = 1 AND C.LANE = :LANE INTO :LAST_TIME;
    IF (QUIET_MS > 0 AND LAST_TIME IS NULL) THEN  -- the task in the gate has ended, and nothing has just come
        SELECT MAX(C.RAISE_TIME) FROM QUEUE_CHANGE C
            WHERE C.SUBSCRIPTION_ID = :OWNER_ID AND C.NEWS IS NULL AND C.LANE = :LANE INTO :LAST_TIME;
    UPDATE QUEUE_CHANGE C SET NEWS = NULL WHERE C.SUBSCRIPTION_ID = :OWNER_ID AND C.NEWS = 1 AND C.LANE = :LANE
        ORDER BY C.SUBSCRIPTION_ID, C.NEWS, C.LANE, C.ID ROWS :MOST;
    MOVED = ROW_COUNT;
    IF (IS_SHUT = 1) THEN
    BEGIN
        UPDATE QUEUE_GATE G SET WAITS = 1 WHERE G.OWNER_ID = :OWNER_ID AND G.LANE = :LANE AND G.WAITS = 0;
        EXIT;
    END
    SELECT FIRST 1 C.RAISE_TIME FROM QUEUE_CHANGE C
        WHERE C.SUBSCRIPTION_ID = :OWNER_ID AND C.NEWS IS NULL AND C.LANE = :LANE
        ORDER BY C.SUBSCRIPTION_ID, C.NEWS, C.LANE, C.ID INTO :FIRST_TIME;
    WAKE_TIME = COALESCE(DATEADD(AFTER_MS MILLISECOND TO FIRST_TIME), NOW_UTC);
    IF (QUIET_MS > 0) THEN
        WAKE_TIME = MINVALUE(WAKE_TIME, COALESCE(DATEADD(QUIET_MS MILLISECOND TO LAST_TIME), WAKE_TIME));
    IF (FILLS = 1) THEN
    BEGIN
        SELECT COUNT(*) FROM (SELECT FIRST (:BATCH) 1 AS ONE FROM QUEUE_CHANGE C
            WHERE C.SUBSCRIPTION_ID = :OWNER_ID AND C.NEWS IS NULL AND C.LANE = :LANE) INTO :WAITING;
        IF (WAITING >= BATCH) THEN
            WAKE_TIME = NOW_UTC;
    END
    UPDATE OR INSERT INTO QUEUE_GATE (OWNER_ID, LANE, HOLDER_ID, HALTED, WAITS, WAKE_TIME)
        VALUES (:OWNER_ID, :LANE, NULL, 0, 1, :WAKE_TIME) MATCHING (OWNER_ID, LANE);
END^

-- Reads the notes of a subscription, and opens up to ROOM gates by them: for up to PLACES new tasks (NULL: the queue
-- has no limit). Where changes wait for others, a gate behind which there are changes alone is waiting then. MISSED is
-- 1 when a ticket was put behind a gate whose task may have ended unseen. READ_ID is as in FBTASKS_LIMITS.OPEN_LANES.
-- Called by DISPATCH_ONE, under its lock.
PRIVATE PROCEDURE READ_NOTES (OWNER_ID INTEGER, READ_ID BIGINT, ROOM INTEGER, PLACES INTEGER, NOW_UTC TIMESTAMP)
RETURNS (OPENED INTEGER, TAKEN INTEGER, PLACES_LEFT INTEGER, MISSED SMALLINT, LAST_READ_ID BIGINT)
AS
    DECLARE ID BIGINT;
    DECLARE BY_KEY SMALLINT;
    DECLARE STOPS SMALLINT;
    DECLARE AFTER_MS BIGINT;
    DECLARE KIND QUEUE_MARK;
    DECLARE LANE BIGINT;
    DECLARE TASK_ID BIGINT;
    DECLARE HOLDER_ID BIGINT;
    DECLARE HALTED SMALLINT;
    DECLARE WAITS SMALLINT;
    DECLARE OPENS SMALLINT;
    DECLARE CHANGES INTEGER;
BEGIN
    OPENED = 0;
    TAKEN = 0;
    PLACES_LEFT = PLACES;
    MISSED = 0;
    SELECT IIF(S.ORDERING = 'key', 1, 0), S.STOPS, S.AFTER_MS FROM QUEUE_SUBSCRIPTION S WHERE S.ID = :OWNER_ID
        INTO :BY_KEY, :STOPS, :AFTER_MS;
    LAST_READ_ID = READ_ID;
    FOR SELECT FIRST 500 N.ID, N.KIND, N.LANE, N.TASK_ID FROM QUEUE_NOTE N WHERE N.OWNER_ID = :OWNER_ID AND N.ID > 0
        ORDER BY N.OWNER_ID, N.ID INTO :ID, :KIND, :LANE, :TASK_ID DO
    BEGIN
        IF (OPENED >= ROOM) THEN
            LEAVE;
        LAST_READ_ID = LAST_READ_ID - 1;
        UPDATE QUEUE_NOTE N SET ID = :LAST_READ_ID, QUEUE = NULL WHERE N.OWNER_ID = :OWNER_ID AND N.ID = :ID;
        HOLDER_ID = NULL; HALTED = 0; WAITS = 0; OPENS = 0;
        KIND = IIF(KIND = 'G' OR (KIND = 'S' AND STOPS = 0), 'F', KIND);
        SELECT G.HOLDER_ID, G.HALTED, G.WAITS FROM QUEUE_GATE G WHERE G.OWNER_ID = :OWNER_ID AND G.LANE = :LANE
            INTO :HOLDER_ID, :HALTED, :WAITS;
        IF (KIND = 'T') THEN
        BEGIN
            INSERT INTO QUEUE_TICKET (OWNER_ID, LANE, TASK_ID) VALUES (:OWNER_ID, :LANE, :TASK_ID);
            UPDATE QUEUE_GATE G SET WAITS = 1 WHERE G.OWNER_ID = :OWNER_ID AND G.LANE = :LANE AND G.WAITS = 0;
            WAITS = 1;
            OPENS = IIF(HOLDER_ID IS NULL OR (HALTED = 1 AND HOLDER_ID = TASK_ID), 1, 0);
            MISSED = IIF(OPENS = 1, MISSED, 1);
        END
        ELSE IF (KIND IN ('F', 'S') AND (HOLDER_ID IS DISTINCT FROM TASK_ID OR HALTED = 1)) THEN
            DELETE FROM QUEUE_TICKET K WHERE K.OWNER_ID = :OWNER_ID AND K.LANE = :LANE AND K.TASK_ID = :TASK_ID;
        ELSE IF (KIND = 'F') THEN
            -- One that is in again was put back before this was read, and let in by a ticket that it still had.
            OPENS = IIF(EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :TASK_ID AND T.STATE <> 4), 0, 1);
        ELSE IF (KIND = 'D') THEN
            OPENS = IIF(HALTED = 1 AND HOLDER_ID = TASK_ID, 1, 0);
        ELSE IF (KIND = 'H') THEN
            UPDATE QUEUE_GATE G SET HOLDER_ID = :TASK_ID WHERE G.OWNER_ID = :OWNER_ID AND G.LANE = :LANE;
        ELSE IF (KIND = 'S') THEN
            UPDATE QUEUE_GATE G SET HALTED = 1 WHERE G.OWNER_ID = :OWNER_ID AND G.LANE = :LANE;
        IF (OPENS = 1 AND WAITS = 0) THEN
            -- what has just come is visited after this
            DELETE FROM QUEUE_GATE G WHERE G.OWNER_ID = :OWNER_ID AND G.LANE = :LANE;
        ELSE IF (OPENS = 1 AND BY_KEY = 1 AND AFTER_MS > 0 AND NOT EXISTS(
                SELECT 1 FROM QUEUE_TICKET K WHERE K.OWNER_ID = :OWNER_ID AND K.LANE = :LANE
                    ORDER BY K.OWNER_ID, K.LANE)) THEN
            EXECUTE PROCEDURE PUT_BEHIND(OWNER_ID, LANE, 0, 1000, NOW_UTC) RETURNING_VALUES CHANGES;
        ELSE IF (OPENS = 1) THEN
        BEGIN
            EXECUTE PROCEDURE OPEN_GATE(OWNER_ID, LANE, IIF(BY_KEY = 1 AND AFTER_MS = 0, 1, 0), PLACES_LEFT, NOW_UTC)
                RETURNING_VALUES TASK_ID, CHANGES;
            OPENED = OPENED + IIF(TASK_ID IS NULL, 0, 1);
            PLACES_LEFT = PLACES_LEFT - IIF(CHANGES > 0, 1, 0);
            TAKEN = TAKEN + CHANGES;
        END
    END
END^

-- When the first change of lane 0 behind AFTER_ID is due, for a subscription whose tasks are made of one lane; NULL:
-- there is none.
PRIVATE PROCEDURE FIRST_DUE (
    SUBSCRIPTION_ID INTEGER, MOST INTEGER, AFTER_MS BIGINT, FILLS SMALLINT, AFTER_ID BIGINT)
RETURNS (DUE_TIME TIMESTAMP)
AS
    DECLARE WAITING INTEGER;
BEGIN
    SELECT FIRST 1 DATEADD(:AFTER_MS MILLISECOND TO C.RAISE_TIME) FROM QUEUE_CHANGE C
        WHERE C.SUBSCRIPTION_ID = :SUBSCRIPTION_ID AND C.NEWS = 1 AND C.LANE = 0 AND C.ID > :AFTER_ID
        ORDER BY C.SUBSCRIPTION_ID, C.NEWS, C.LANE, C.ID INTO :DUE_TIME;
    IF (DUE_TIME IS NOT NULL AND FILLS = 1 AND AFTER_MS > 0) THEN
    BEGIN
        SELECT COUNT(*) FROM (SELECT FIRST (:MOST) 1 AS ONE FROM QUEUE_CHANGE C
            WHERE C.SUBSCRIPTION_ID = :SUBSCRIPTION_ID AND C.NEWS = 1 AND C.LANE = 0 AND C.ID > :AFTER_ID
            ORDER BY C.SUBSCRIPTION_ID, C.NEWS, C.LANE, C.ID) INTO :WAITING;
        IF (WAITING >= MOST) THEN
            DUE_TIME = TIMESTAMP '0001-01-01';
    END
END^

-- Makes up to ROOM tasks of one change each, from what comes behind AFTER_ID in lane 0, for a subscription without an
-- order, in a queue without a limit. Ends before a change that does not fit the row of its task. LAST_ID is the last
-- change that it took. A twin of MAKE_TASK on purpose: a change costs 31 us in the claim this way, and 38 by a call
-- of that for each. What one of them writes into the row of a task, the other one has to write as well.
PRIVATE PROCEDURE DISPATCH_EACH (OWNER_ID INTEGER, ROOM INTEGER, AFTER_ID BIGINT, NOW_UTC TIMESTAMP)
RETURNS (DISPATCHED INTEGER, LAST_ID BIGINT)
AS
    DECLARE NAME QUEUE_TEXT;
    DECLARE QUEUE QUEUE_NAME;
    DECLARE PRIORITY_RANK SMALLINT;
    DECLARE ID BIGINT;
    DECLARE RAISE_TIME TIMESTAMP;
    DECLARE DATA QUEUE_INLINE;
BEGIN
    DISPATCHED = 0;
    LAST_ID = AFTER_ID;
    SELECT S.NAME, S.QUEUE, S.PRIORITY_RANK FROM QUEUE_SUBSCRIPTION S WHERE S.ID = :OWNER_ID
        INTO :NAME, :QUEUE, :PRIORITY_RANK;
    FOR SELECT C.ID, C.RAISE_TIME, C.DATA FROM QUEUE_CHANGE C
        WHERE C.SUBSCRIPTION_ID = :OWNER_ID AND C.NEWS = 1 AND C.LANE = 0 AND C.ID > :AFTER_ID
        ORDER BY C.SUBSCRIPTION_ID, C.NEWS, C.LANE, C.ID INTO :ID, :RAISE_TIME, :DATA AS CURSOR CHANGES DO
    BEGIN
        IF (DISPATCHED >= ROOM OR DATA IS NULL OR OCTET_LENGTH(DATA) > 1990) THEN
            LEAVE;
        INSERT INTO QUEUE_TASK (ID, OWNER_ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, CONTENT_TYPE,
            PAYLOAD)
        VALUES (NEXT VALUE FOR QUEUE_TASK_SEQ, :OWNER_ID, :NAME, :QUEUE, 0, :PRIORITY_RANK, :RAISE_TIME, :NOW_UTC,
            'application/json', '[[' || :DATA || '],{}]');
        DELETE FROM QUEUE_CHANGE WHERE CURRENT OF CHANGES;
        DISPATCHED = DISPATCHED + 1;
        LAST_ID = ID;
    END
END^

-- From where on an ordered reader has to read, so that nothing that is committed by now is passed by: a change has
-- its number before its transaction commits, and others with higher numbers may have been read meanwhile. What the
-- statement does not see yet counts as not committed. The caller has the row of QUEUE_DISPATCH locked, reads in the
-- order of the numbers, and calls MOVE_BACK then.
PROCEDURE LOOK_BACK (SUBSCRIPTION_ID INTEGER)
RETURNS (FROM_ID BIGINT)
AS
    DECLARE BACK_TX BIGINT;
    DECLARE ELDERS VARCHAR(1900) CHARACTER SET ASCII;
    DECLARE SEEN_CN BIGINT;
    DECLARE PLACE INTEGER = 1;
BEGIN
    SELECT D.BACK_ID, D.BACK_TX, D.ELDERS FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = :SUBSCRIPTION_ID
        INTO :FROM_ID, :BACK_TX, :ELDERS;
    IF (BACK_TX IS NOT NULL AND RDB$GET_TRANSACTION_CN(BACK_TX) IS NULL) THEN
    BEGIN
        -- A restored database counts its transactions anew.
        FROM_ID = 0;
        UPDATE QUEUE_DISPATCH D SET BACK_ID = 0, BACK_TX = NULL, ELDERS = '' WHERE D.SUBSCRIPTION_ID = :SUBSCRIPTION_ID;
        EXIT;
    END
    SEEN_CN = COALESCE(RDB$GET_CONTEXT('SYSTEM', 'SNAPSHOT_NUMBER'), 0);
    WHILE (PLACE < CHAR_LENGTH(ELDERS)) DO
    BEGIN
        IF (RDB$GET_TRANSACTION_CN(CAST(SUBSTRING(ELDERS FROM PLACE FOR 19) AS BIGINT)) BETWEEN 1 AND SEEN_CN) THEN
            FROM_ID = MINVALUE(FROM_ID, CAST(SUBSTRING(ELDERS FROM PLACE + 19 FOR 19) AS BIGINT));
        PLACE = PLACE + 38;
    END
END^

-- Tells LOOK_BACK what was read: all up to LAST_ID that the statement sees, and with IS_ALL all that there is. When
-- that is far enough from where it had others begin, it has them begin there from now on, but for transactions that
-- are not done yet.
PROCEDURE MOVE_BACK (SUBSCRIPTION_ID INTEGER, LAST_ID BIGINT, IS_ALL SMALLINT)
AS
    DECLARE BACK_ID BIGINT;
    DECLARE BACK_TX BIGINT;
    DECLARE NEXT_TX BIGINT;
    DECLARE LAST_TX BIGINT;
    DECLARE ELDERS VARCHAR(1900) CHARACTER SET ASCII;
    DECLARE KEPT VARCHAR(1900) CHARACTER SET ASCII = '';
    DECLARE SEEN_CN BIGINT;
    DECLARE CN BIGINT;
    DECLARE PLACE INTEGER = 1;
BEGIN
    SELECT D.BACK_ID, D.BACK_TX, D.ELDERS FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = :SUBSCRIPTION_ID
        INTO :BACK_ID, :BACK_TX, :ELDERS;
    SEEN_CN = RDB$GET_CONTEXT('SYSTEM', 'SNAPSHOT_NUMBER');
    IF (SEEN_CN IS NULL OR (ELDERS = '' AND LAST_ID < BACK_ID + 1000)) THEN
        EXIT;
    IF (LAST_ID < BACK_ID AND IS_ALL = 0) THEN
        KEPT = ELDERS;
    ELSE
        WHILE (PLACE < CHAR_LENGTH(ELDERS)) DO
        BEGIN
            CN = RDB$GET_TRANSACTION_CN(CAST(SUBSTRING(ELDERS FROM PLACE FOR 19) AS BIGINT));
            IF (CN IN (0, -1) OR CN > SEEN_CN) THEN  -- active, prepared, or not seen yet; one that is dead has -2
                KEPT = KEPT || SUBSTRING(ELDERS FROM PLACE FOR 38);
            PLACE = PLACE + 38;
        END
    IF (LAST_ID >= BACK_ID + 1000) THEN
    BEGIN
        IF (BACK_TX IS NULL) THEN
            SELECT MON$OLDEST_TRANSACTION FROM MON$DATABASE INTO :BACK_TX;  -- which counts those that are prepared, too
        IN AUTONOMOUS TRANSACTION DO
            NEXT_TX = CURRENT_TRANSACTION;  -- whatever begins from now on takes numbers behind LAST_ID
        LAST_TX = MINVALUE(NEXT_TX, BACK_TX + 5000);  -- in steps, after a long time
        WHILE (BACK_TX < LAST_TX AND CHAR_LENGTH(KEPT) <= 1862) DO
        BEGIN
            CN = RDB$GET_TRANSACTION_CN(BACK_TX);
            IF ((CN IN (0, -1) OR CN > SEEN_CN) AND BACK_TX <> CURRENT_TRANSACTION) THEN
                KEPT = KEPT || LPAD(BACK_TX, 19, '0') || LPAD(BACK_ID, 19, '0');
            BACK_TX = BACK_TX + 1;
        END
        BACK_ID = IIF(BACK_TX = NEXT_TX, LAST_ID, BACK_ID);
    END
    UPDATE QUEUE_DISPATCH D SET BACK_ID = :BACK_ID, BACK_TX = :BACK_TX, ELDERS = :KEPT
        WHERE D.SUBSCRIPTION_ID = :SUBSCRIPTION_ID
        AND (D.BACK_TX IS DISTINCT FROM :BACK_TX OR D.ELDERS <> :KEPT OR D.BACK_ID <> :BACK_ID);
END^

-- Makes tasks by the key: visits lanes with news, in turn from FIRST_LANE on, and gates whose time has come. The other
-- parameters, and what is returned, are those of DISPATCH_ONE, which calls this under its lock.
PRIVATE PROCEDURE VISIT_LANES (
    SUBSCRIPTION_ID INTEGER, FIRST_LANE BIGINT, AFTER_MS BIGINT, ROOM INTEGER, PLACES INTEGER, NOW_UTC TIMESTAMP)
RETURNS (DISPATCHED INTEGER, PLACES_LEFT INTEGER, TAKEN INTEGER, MISSED SMALLINT, LAST_LANE BIGINT)
AS
    DECLARE LEAST_LANE BIGINT = -9223372036854775807;
    DECLARE WRAPPED SMALLINT = 0;
    DECLARE MOVES INTEGER = 500;
    DECLARE LANE BIGINT;
    DECLARE HAS_ROW SMALLINT;
    DECLARE HOLDER_ID BIGINT;
    DECLARE WAITS SMALLINT;
    DECLARE TASK_ID BIGINT;
    DECLARE CHANGES INTEGER;
    DECLARE LAST_ID BIGINT;
    DECLARE MORE SMALLINT;
BEGIN
    DISPATCHED = 0;
    PLACES_LEFT = PLACES;
    TAKEN = 0;
    MISSED = 0;
    LAST_LANE = FIRST_LANE;
    -- Lanes with news, in turn from the one after the last.
    WHILE (DISPATCHED < ROOM AND COALESCE(PLACES_LEFT, 1) > 0 AND MOVES > 0) DO
    BEGIN
        LANE = NULL;
        SELECT FIRST 1 C.LANE FROM QUEUE_CHANGE C
            WHERE C.SUBSCRIPTION_ID = :SUBSCRIPTION_ID AND C.NEWS = 1 AND C.LANE >= :LAST_LANE
            ORDER BY C.SUBSCRIPTION_ID, C.NEWS, C.LANE, C.ID INTO :LANE;
        IF (LANE IS NULL AND WRAPPED = 0 AND FIRST_LANE > LEAST_LANE) THEN
        BEGIN
            WRAPPED = 1;
            LAST_LANE = LEAST_LANE;
            CONTINUE;
        END
        IF (LANE IS NULL OR (WRAPPED = 1 AND LANE >= FIRST_LANE)) THEN
            LEAVE;
        HAS_ROW = 0; HOLDER_ID = NULL; WAITS = 0;
        SELECT 1, G.HOLDER_ID, G.WAITS FROM QUEUE_GATE G WHERE G.OWNER_ID = :SUBSCRIPTION_ID AND G.LANE = :LANE
            INTO :HAS_ROW, :HOLDER_ID, :WAITS;
        IF (HAS_ROW = 0 AND AFTER_MS = 0) THEN
        BEGIN
            EXECUTE PROCEDURE MAKE_TASK(SUBSCRIPTION_ID, LANE, 0, 1, 0, PLACES_LEFT, NOW_UTC)
                RETURNING_VALUES TASK_ID, CHANGES, LAST_ID, MORE;
            INSERT INTO QUEUE_GATE (OWNER_ID, LANE, HOLDER_ID) VALUES (:SUBSCRIPTION_ID, :LANE, :TASK_ID);
            DISPATCHED = DISPATCHED + 1;
            PLACES_LEFT = PLACES_LEFT - 1;
            TAKEN = TAKEN + CHANGES;
        END
        ELSE
        BEGIN
            EXECUTE PROCEDURE PUT_BEHIND(SUBSCRIPTION_ID, LANE, IIF(HOLDER_ID IS NULL, 0, 1), MOVES, NOW_UTC)
                RETURNING_VALUES CHANGES;
            MOVES = MOVES - CHANGES;
            -- Where nothing waited before, the task in it may be ending unseen, and wakes no worker for this.
            MISSED = IIF(HOLDER_ID IS NOT NULL AND WAITS = 0, 1, MISSED);
        END
        LAST_LANE = MINVALUE(LANE, 9223372036854775806) + 1;
    END
    -- Gates whose time has come.
    WHILE (DISPATCHED < ROOM) DO
    BEGIN
        LANE = NULL;
        SELECT FIRST 1 G.LANE FROM QUEUE_GATE G WHERE G.OWNER_ID = :SUBSCRIPTION_ID AND G.WAKE_TIME <= :NOW_UTC
                AND (COALESCE(:PLACES_LEFT, 1) > 0 OR EXISTS(
                    SELECT 1 FROM QUEUE_TICKET K WHERE K.OWNER_ID = :SUBSCRIPTION_ID AND K.LANE = G.LANE
                        ORDER BY K.OWNER_ID, K.LANE))
            ORDER BY G.OWNER_ID, G.WAKE_TIME INTO :LANE;
        IF (LANE IS NULL) THEN
            LEAVE;
        EXECUTE PROCEDURE OPEN_GATE(SUBSCRIPTION_ID, LANE, 1, PLACES_LEFT, NOW_UTC)
            RETURNING_VALUES TASK_ID, CHANGES;
        DISPATCHED = DISPATCHED + IIF(TASK_ID IS NULL, 0, 1);
        PLACES_LEFT = PLACES_LEFT - IIF(CHANGES > 0, 1, 0);
        TAKEN = TAKEN + CHANGES;
    END
END^

-- Makes up to ROOM tasks of what one subscription has in the log, in its order. PLACES is how many places of its
-- queue the caller holds for new tasks (NULL: the queue has no limit); a task that is let in again has one. The
-- transaction that has the row of QUEUE_DISPATCH locked does this, and sees all that was done under that lock before;
-- MISSED is 1 when another one has it. With FROM_START = 0 lane 0 is read from where the last one ended: what was
-- deleted before may still be there, as versions that an old transaction keeps, and what was committed late is found
-- the next time with 1; in total order it is found at once. By key, lanes are visited in turn; those whose gate is
-- shut have their changes moved behind it, so that they are not met again: so many in a claim that others go on.
PRIVATE PROCEDURE DISPATCH_ONE (SUBSCRIPTION_ID INTEGER, ROOM INTEGER, PLACES INTEGER, FROM_START SMALLINT)
RETURNS (DISPATCHED INTEGER, PLACES_LEFT INTEGER, MISSED SMALLINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE ORDERING VARCHAR(5) CHARACTER SET ASCII;
    DECLARE MOST INTEGER;
    DECLARE AFTER_MS BIGINT;
    DECLARE FILLS SMALLINT;
    DECLARE MARK_ID BIGINT;
    DECLARE LAST_LANE BIGINT;
    DECLARE LANE BIGINT;
    DECLARE DUE_TIME TIMESTAMP;
    DECLARE TASK_ID BIGINT;
    DECLARE CHANGES INTEGER;
    DECLARE MORE SMALLINT;
    DECLARE NEW_TASKS INTEGER;
    DECLARE MORE_MISSED SMALLINT;
    DECLARE READ_ID BIGINT;
    DECLARE LAST_READ_ID BIGINT;
    DECLARE TAKEN INTEGER = 0;
    DECLARE FURTHEST_ID BIGINT;
BEGIN
    DISPATCHED = 0;
    PLACES_LEFT = PLACES;
    MISSED = 0;
    EXECUTE PROCEDURE FBTASKS_CORE.TRY_LOCK_OWNER(SUBSCRIPTION_ID) RETURNING_VALUES READ_ID, MARK_ID, LAST_LANE;
    IF (READ_ID IS NULL) THEN
    BEGIN
        MISSED = 1;
        EXIT;
    END
    NOW_UTC = QUEUE_NOW();
    SELECT S.ORDERING, S.MOST, S.AFTER_MS, S.FILLS FROM QUEUE_SUBSCRIPTION S WHERE S.ID = :SUBSCRIPTION_ID
        INTO :ORDERING, :MOST, :AFTER_MS, :FILLS;
    FURTHEST_ID = MARK_ID;
    IF (FROM_START = 1) THEN
        MARK_ID = 0;
    ELSE IF (ORDERING = 'total') THEN
        EXECUTE PROCEDURE LOOK_BACK(SUBSCRIPTION_ID) RETURNING_VALUES MARK_ID;

    LAST_READ_ID = READ_ID;
    IF (EXISTS(SELECT 1 FROM QUEUE_NOTE N WHERE N.OWNER_ID = :SUBSCRIPTION_ID AND N.ID > 0
        ORDER BY N.OWNER_ID, N.ID)) THEN
        EXECUTE PROCEDURE READ_NOTES(SUBSCRIPTION_ID, READ_ID, ROOM, PLACES, NOW_UTC)
            RETURNING_VALUES DISPATCHED, TAKEN, PLACES_LEFT, MISSED, LAST_READ_ID;

    IF (ORDERING <> 'key') THEN
    BEGIN
        LANE = IIF(ORDERING = 'none', NULL, 0);
        -- A task with a ticket that another transaction had locked.
        IF (LANE = 0 AND DISPATCHED < ROOM AND EXISTS(SELECT 1 FROM QUEUE_GATE G
                WHERE G.OWNER_ID = :SUBSCRIPTION_ID AND G.LANE = 0 AND G.WAKE_TIME <= :NOW_UTC)) THEN
        BEGIN
            EXECUTE PROCEDURE OPEN_GATE(SUBSCRIPTION_ID, LANE, 0, PLACES_LEFT, NOW_UTC)
                RETURNING_VALUES TASK_ID, CHANGES;
            DISPATCHED = DISPATCHED + IIF(TASK_ID IS NULL, 0, 1);
        END
        IF (LANE IS NULL AND MOST = 1 AND AFTER_MS = 0 AND PLACES IS NULL) THEN
        BEGIN
            EXECUTE PROCEDURE DISPATCH_EACH(SUBSCRIPTION_ID, ROOM - DISPATCHED, MARK_ID, NOW_UTC)
                RETURNING_VALUES CHANGES, MARK_ID;
            DISPATCHED = DISPATCHED + CHANGES;
            TAKEN = TAKEN + CHANGES;
        END
        WHILE (DISPATCHED < ROOM AND COALESCE(PLACES_LEFT, 1) > 0 AND (LANE IS NULL OR NOT EXISTS(
                SELECT 1 FROM QUEUE_GATE G WHERE G.OWNER_ID = :SUBSCRIPTION_ID AND G.LANE = 0))) DO
        BEGIN
            IF (AFTER_MS > 0) THEN
            BEGIN
                EXECUTE PROCEDURE FIRST_DUE(SUBSCRIPTION_ID, MOST, AFTER_MS, FILLS, MARK_ID) RETURNING_VALUES DUE_TIME;
                IF (DUE_TIME IS NULL OR DUE_TIME > NOW_UTC) THEN
                    LEAVE;
            END
            EXECUTE PROCEDURE MAKE_TASK(SUBSCRIPTION_ID, LANE, 0, 1, MARK_ID, PLACES_LEFT, NOW_UTC)
                RETURNING_VALUES TASK_ID, CHANGES, MARK_ID, MORE;
            IF (TASK_ID IS NULL) THEN
                LEAVE;
            IF (LANE = 0) THEN
                INSERT INTO QUEUE_GATE (OWNER_ID, LANE, HOLDER_ID, WAITS) VALUES (:SUBSCRIPTION_ID, 0, :TASK_ID, :MORE);
            DISPATCHED = DISPATCHED + 1;
            PLACES_LEFT = PLACES_LEFT - 1;
            TAKEN = TAKEN + CHANGES;
        END
        -- In total order changes stay where they are. When the first come while the gate is shut that is written
        -- there, so that the end of its task wakes workers: unless that end is recorded already, unseen.
        IF (LANE = 0 AND DISPATCHED = 0 AND EXISTS(SELECT 1 FROM QUEUE_CHANGE C
                WHERE C.SUBSCRIPTION_ID = :SUBSCRIPTION_ID AND C.NEWS = 1 AND C.LANE = 0 AND C.ID > :MARK_ID
                    ORDER BY C.SUBSCRIPTION_ID, C.NEWS)) THEN
        BEGIN
            UPDATE QUEUE_GATE G SET WAITS = 1
                WHERE G.OWNER_ID = :SUBSCRIPTION_ID AND G.LANE = 0 AND G.HOLDER_ID IS NOT NULL AND G.WAITS = 0;
            MISSED = IIF(ROW_COUNT > 0, 1, MISSED);
        END
    END
    ELSE
    BEGIN
        EXECUTE PROCEDURE VISIT_LANES(SUBSCRIPTION_ID, LAST_LANE, AFTER_MS, ROOM - DISPATCHED, PLACES_LEFT, NOW_UTC)
            RETURNING_VALUES NEW_TASKS, PLACES_LEFT, CHANGES, MORE_MISSED, LAST_LANE;
        DISPATCHED = DISPATCHED + NEW_TASKS;
        TAKEN = TAKEN + CHANGES;
        MISSED = MAXVALUE(MISSED, MORE_MISSED);
    END
    IF (ORDERING = 'total' AND MORE IS NOT NULL) THEN
        EXECUTE PROCEDURE MOVE_BACK(SUBSCRIPTION_ID, MARK_ID, 1 - MORE);
    MARK_ID = IIF(ORDERING = 'total', MAXVALUE(MARK_ID, FURTHEST_ID), MARK_ID);
    UPDATE QUEUE_DISPATCH D SET MARK_ID = IIF(:TAKEN = 0, MARK_ID, :MARK_ID), LAST_LANE = :LAST_LANE,
        TAKEN = TAKEN + :TAKEN, NOTES_DELETED = -:READ_ID, NOTES_READ = -:LAST_READ_ID
        WHERE D.SUBSCRIPTION_ID = :SUBSCRIPTION_ID;
    EXECUTE PROCEDURE FBTASKS_CORE.SET_DUE_TIME(SUBSCRIPTION_ID);
END^

-- Whether the subscription has something for a dispatcher to do now, and else how many milliseconds remain until it
-- has (NULL: nothing waits for a time). With FULL_UP its queue has no free place: then that is what can be done
-- without one.
PROCEDURE SOURCE_READY (SUBSCRIPTION_ID INTEGER, FROM_START SMALLINT, FULL_UP SMALLINT)
RETURNS (READY SMALLINT, NEXT_MS BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE ORDERING VARCHAR(5) CHARACTER SET ASCII;
    DECLARE MOST INTEGER;
    DECLARE AFTER_MS BIGINT;
    DECLARE FILLS SMALLINT;
    DECLARE MARK_ID BIGINT = 0;
    DECLARE WAITS SMALLINT;
    DECLARE DUE_TIME TIMESTAMP;
BEGIN
    READY = 1;
    IF (EXISTS(SELECT 1 FROM QUEUE_NOTE N WHERE N.OWNER_ID = :SUBSCRIPTION_ID AND N.ID > 0
        ORDER BY N.OWNER_ID, N.ID)) THEN
        EXIT;
    SELECT S.ORDERING, S.MOST, S.AFTER_MS, S.FILLS FROM QUEUE_SUBSCRIPTION S WHERE S.ID = :SUBSCRIPTION_ID
        INTO :ORDERING, :MOST, :AFTER_MS, :FILLS;
    NOW_UTC = QUEUE_NOW();
    IF (FULL_UP = 1) THEN
        SELECT MIN(G.WAKE_TIME) FROM QUEUE_GATE G
            WHERE G.OWNER_ID = :SUBSCRIPTION_ID AND G.WAKE_TIME > TIMESTAMP '0001-01-01' AND EXISTS(
                SELECT 1 FROM QUEUE_TICKET K WHERE K.OWNER_ID = :SUBSCRIPTION_ID AND K.LANE = G.LANE
                    ORDER BY K.OWNER_ID, K.LANE) INTO :DUE_TIME;
    ELSE IF (ORDERING = 'key') THEN
    BEGIN
        IF (EXISTS(SELECT 1 FROM QUEUE_CHANGE C WHERE C.SUBSCRIPTION_ID = :SUBSCRIPTION_ID AND C.NEWS = 1
            ORDER BY C.SUBSCRIPTION_ID, C.NEWS)) THEN
            EXIT;
        SELECT FIRST 1 G.WAKE_TIME FROM QUEUE_GATE G WHERE G.OWNER_ID = :SUBSCRIPTION_ID
            AND G.WAKE_TIME > TIMESTAMP '0001-01-01'
            ORDER BY G.OWNER_ID, G.WAKE_TIME INTO :DUE_TIME;
    END
    ELSE
    BEGIN
        IF (ORDERING = 'total') THEN
            SELECT G.WAITS, G.WAKE_TIME FROM QUEUE_GATE G WHERE G.OWNER_ID = :SUBSCRIPTION_ID AND G.LANE = 0
                INTO :WAITS, :DUE_TIME;
        IF (COALESCE(WAITS, 0) = 0) THEN  -- NULL: the gate is free
        BEGIN
            IF (FROM_START = 0) THEN
                SELECT D.MARK_ID FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = :SUBSCRIPTION_ID INTO :MARK_ID;
            EXECUTE PROCEDURE FIRST_DUE(SUBSCRIPTION_ID, MOST, AFTER_MS, FILLS, MARK_ID) RETURNING_VALUES DUE_TIME;
            IF (WAITS = 0 AND DUE_TIME IS NOT NULL) THEN
                EXIT;  -- that changes wait is to be written at the gate, which is shut
        END
    END
    IF (DUE_TIME IS NULL OR DUE_TIME > NOW_UTC) THEN
    BEGIN
        READY = 0;
        NEXT_MS = CEIL(DATEDIFF(MILLISECOND FROM NOW_UTC TO DUE_TIME));
    END
END^

-- Locks up to MOST free places of a queue with a limit, so that its own transaction can take so many (FOUND), and no
-- other one can.
PROCEDURE HOLD_PLACES (QUEUE QUEUE_NAME, MOST INTEGER)
RETURNS (FOUND INTEGER)
AS
    DECLARE NO_ INTEGER;
    DECLARE OWED SMALLINT;
BEGIN
    FOUND = 0;
    EXECUTE PROCEDURE FBTASKS_QUEUES.PAY_PLACES(QUEUE) RETURNING_VALUES OWED;
    IF (OWED = 0 AND MOST > 0) THEN
        FOR SELECT P.NO_ FROM QUEUE_PLACE P WHERE P.QUEUE = :QUEUE AND P.NO_ >= 0
            ORDER BY P.QUEUE, P.NO_ FOR UPDATE WITH LOCK SKIP LOCKED INTO :NO_ DO
        BEGIN
            FOUND = FOUND + 1;
            IF (FOUND >= MOST) THEN
                LEAVE;
        END
END^

-- The active subscriptions of QUEUE, but for polls, that may have something: of which something is noted or logged, or
-- one of whose gates has a moment, DUE_TIME. One may come several times. The tables lead from one to the next, so that
-- those are met alone of which there is something.
PROCEDURE SOURCES_WITH_WORK (QUEUE QUEUE_NAME)
RETURNS (SUBSCRIPTION_ID INTEGER, PRIORITY_RANK SMALLINT, DUE_TIME TIMESTAMP)
AS
    DECLARE OWNER_ID INTEGER = 0;
    DECLARE PART SMALLINT = 0;
BEGIN
    WHILE (PART < 2) DO
    BEGIN
        IF (PART = 0) THEN
            OWNER_ID = (SELECT FIRST 1 N.OWNER_ID FROM QUEUE_NOTE N
                WHERE N.QUEUE = :QUEUE AND N.OWNER_ID >= :OWNER_ID + 1 ORDER BY N.QUEUE, N.OWNER_ID);
        ELSE
            OWNER_ID = (SELECT FIRST 1 C.SUBSCRIPTION_ID FROM QUEUE_CHANGE C
                WHERE C.SUBSCRIPTION_ID >= :OWNER_ID + 1
                ORDER BY C.SUBSCRIPTION_ID, C.NEWS, C.LANE, C.ID);
        FOR SELECT S.ID, S.PRIORITY_RANK FROM QUEUE_SUBSCRIPTION S
                WHERE S.ID = :OWNER_ID AND S.QUEUE = :QUEUE AND S.STATE = 'active' AND S.KIND <> 'poll'
                INTO :SUBSCRIPTION_ID, :PRIORITY_RANK DO
            SUSPEND;
        IF (OWNER_ID IS NULL) THEN
        BEGIN
            PART = PART + 1;
            OWNER_ID = 0;
        END
    END
    FOR SELECT S.ID, S.PRIORITY_RANK, F.DUE_TIME FROM QUEUE_FEEDER F JOIN QUEUE_SUBSCRIPTION S ON S.ID = F.OWNER_ID
            WHERE F.QUEUE = :QUEUE AND F.DUE_TIME >= TIMESTAMP '0001-01-01' AND S.STATE = 'active'
            INTO :SUBSCRIPTION_ID, :PRIORITY_RANK, :DUE_TIME DO
        SUSPEND;
END^

-- Makes up to ROOM tasks of what the sources of a queue have, less those that are ready in it, and where the queue
-- has a limit no more than there are free places; a held task, which has one, is let in all the same. Rank by rank,
-- as the claim that calls this; those of one rank that have something share the room. MISSED is 1 when another
-- transaction is at one, or in its way, or may be ending what something now waits for. CROWDED is 1 when ready tasks
-- have left less room than the sources have need of. When it turns out that other transactions hold those, it is
-- called again with HELD_RANK: ready tasks are not counted then, and sources of higher ranks are not asked.
PROCEDURE DISPATCH (
    QUEUE QUEUE_NAME, ROOM INTEGER, FROM_START SMALLINT, HELD_RANK SMALLINT)
RETURNS (MISSED SMALLINT, CROWDED SMALLINT)
AS
    DECLARE SUBSCRIPTION_ID INTEGER;
    DECLARE RANK SMALLINT = -10000;
    DECLARE READY SMALLINT;
    DECLARE NEXT_MS BIGINT;
    DECLARE NEXT_RANK SMALLINT;
    DECLARE DUE_TIME TIMESTAMP;
    DECLARE WITH_WORK VARCHAR(10000) CHARACTER SET ASCII = '';  -- a rank in 6 characters, and a subscription in 11
    DECLARE ENTRY CHAR(17) CHARACTER SET ASCII;
    DECLARE PLACE INTEGER;
    DECLARE FOUND VARCHAR(10000) CHARACTER SET ASCII;
    DECLARE SHARERS INTEGER;
    DECLARE SHARE INTEGER;
    DECLARE WAITING INTEGER = 0;
    DECLARE DISPATCHED INTEGER;
    DECLARE MISSED_ONE SMALLINT;
    DECLARE PLACES INTEGER;  -- NULL: the queue has no limit
    DECLARE BOUNDED SMALLINT = 0;
    DECLARE AGE_MS BIGINT;
BEGIN
    MISSED = 0;
    CROWDED = 0;
    SELECT IIF(P.MAX_LENGTH IS NULL, 0, 1), P.AGE_MS FROM QUEUE_POLICY P WHERE P.QUEUE = :QUEUE INTO :BOUNDED, :AGE_MS;
    FOR SELECT W.SUBSCRIPTION_ID, W.PRIORITY_RANK, W.DUE_TIME FROM SOURCES_WITH_WORK(:QUEUE) W
        INTO :SUBSCRIPTION_ID, :NEXT_RANK, :DUE_TIME DO
    BEGIN
        ENTRY = LPAD(NEXT_RANK, 6) || LPAD(SUBSCRIPTION_ID, 11);
        IF (CHAR_LENGTH(WITH_WORK) < 9900 AND (DUE_TIME IS NULL OR DUE_TIME <= QUEUE_NOW())
                AND POSITION(ENTRY, WITH_WORK) = 0) THEN
            WITH_WORK = WITH_WORK || ENTRY;
    END
    WHILE (WAITING < ROOM AND WITH_WORK <> '') DO
    BEGIN
        NEXT_RANK = NULL;
        PLACE = 1;
        WHILE (PLACE < CHAR_LENGTH(WITH_WORK)) DO
        BEGIN
            SHARE = CAST(SUBSTRING(WITH_WORK FROM PLACE FOR 6) AS SMALLINT);
            IF (SHARE > RANK) THEN
                NEXT_RANK = MINVALUE(COALESCE(NEXT_RANK, SHARE), SHARE);
            PLACE = PLACE + 17;
        END
        RANK = NEXT_RANK;
        IF (RANK IS NULL OR RANK > HELD_RANK) THEN
            LEAVE;
        FOUND = '';
        SHARERS = 0;
        PLACE = 1;
        WHILE (PLACE < CHAR_LENGTH(WITH_WORK)) DO
        BEGIN
            IF (CAST(SUBSTRING(WITH_WORK FROM PLACE FOR 6) AS SMALLINT) = RANK) THEN
            BEGIN
                SUBSCRIPTION_ID = CAST(SUBSTRING(WITH_WORK FROM PLACE + 6 FOR 11) AS INTEGER);
                EXECUTE PROCEDURE SOURCE_READY(SUBSCRIPTION_ID, FROM_START, 0) RETURNING_VALUES READY, NEXT_MS;
                IF (READY = 1) THEN
                BEGIN
                    FOUND = FOUND || LPAD(SUBSCRIPTION_ID, 11);
                    SHARERS = SHARERS + 1;
                END
            END
            PLACE = PLACE + 17;
        END
        IF (SHARERS > 0 AND HELD_RANK IS NULL) THEN
        BEGIN
            DISPATCHED = WAITING;
            SELECT COUNT(*) FROM (SELECT FIRST (:ROOM) 1 AS ONE FROM QUEUE_TASK T
                WHERE T.STATE = 0 AND T.QUEUE = :QUEUE AND T.PRIORITY_RANK <= :RANK) INTO :WAITING;
            IF (WAITING > DISPATCHED) THEN
                CROWDED = 1;
            -- Half of the room, as far as more urgent tasks leave it, is theirs however many ready tasks of their own
            -- rank there are; of a room for one that is so every second time, by chance. Else a queue in which tasks
            -- are always ready never asked them. With ageing no task is more urgent for good: it is theirs until so
            -- many of their rank are ready.
            SHARE = ROOM / 2 + IIF(MOD(ROOM, 2) = 1 AND RAND() < 0.5, 1, 0);
            IF (WAITING > ROOM - SHARE AND RANK < 9999) THEN  -- a claim may leave idle work, and then it would pile up
            BEGIN
                WAITING = ROOM - SHARE;
                SELECT MAXVALUE(:WAITING, COUNT(*)) FROM (SELECT FIRST (:ROOM) 1 AS ONE FROM QUEUE_TASK T
                    WHERE T.STATE = 0 AND T.QUEUE = :QUEUE AND T.PRIORITY_RANK >= IIF(:AGE_MS IS NULL, -9999, :RANK)
                        AND T.PRIORITY_RANK <= IIF(:AGE_MS IS NULL, :RANK - 1, :RANK)) INTO :WAITING;
            END
        END
        IF (BOUNDED = 1 AND SHARERS > 0) THEN
            EXECUTE PROCEDURE HOLD_PLACES(QUEUE, ROOM - WAITING) RETURNING_VALUES PLACES;
        WHILE (SHARERS > 0 AND WAITING < ROOM) DO
        BEGIN
            SUBSCRIPTION_ID = CAST(SUBSTRING(FOUND FROM 11 * SHARERS - 10 FOR 11) AS INTEGER);
            BEGIN
                EXECUTE PROCEDURE DISPATCH_ONE(SUBSCRIPTION_ID, (ROOM - WAITING + SHARERS - 1) / SHARERS, PLACES,
                    FROM_START) RETURNING_VALUES DISPATCHED, PLACES, MISSED_ONE;
                MISSED = MAXVALUE(MISSED, MISSED_ONE);
                WAITING = WAITING + DISPATCHED;
                -- Another transaction has locked a row of it: all else goes on.
                WHEN GDSCODE DEADLOCK, GDSCODE UPDATE_CONFLICT, GDSCODE LOCK_CONFLICT DO
                    MISSED = 1;
            END
            SHARERS = SHARERS - 1;
        END
    END
    IF (WAITING < ROOM) THEN
        CROWDED = 0;
END^

-- Writes an event into the log. Called by FBTASKS_SOURCES_API.RAISE_EVENT.
PROCEDURE LOG_EVENT (
    SUBSCRIPTION_ID INTEGER, LANE BIGINT, ID BIGINT, RAISE_TIME TIMESTAMP, BODY QUEUE_BINARY)
AS
BEGIN
    IF (OCTET_LENGTH(BODY) <= 2000) THEN
        INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID, LANE, ID, RAISE_TIME, DATA)
            VALUES (:SUBSCRIPTION_ID, :LANE, :ID, :RAISE_TIME, CAST(:BODY AS VARCHAR(2000) CHARACTER SET OCTETS));
    ELSE
        INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID, LANE, ID, RAISE_TIME, LARGE)
            VALUES (:SUBSCRIPTION_ID, :LANE, :ID, :RAISE_TIME, :BODY);
END^

PACKAGE FBTASKS_SOURCES_API^

-- Raises an event, and returns the number of the transaction: a task for each handler, or a row of the log where it
-- has an ORDER_KEY, or the handler takes several at a time or is paused. Where there is no handler it is kept under
-- subscription 0, by a hash of its name, for a handler that is registered within a day. It is raised at START_TIME,
-- or in DELAY_MS; NULL: now.
PROCEDURE RAISE_EVENT (
    EVENT QUEUE_TEXT, DATA QUEUE_LONG_TEXT, START_TIME TIMESTAMP, DELAY_MS BIGINT,
    ORDER_KEY QUEUE_TEXT)
RETURNS (TRANSACTION_ID BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE ID BIGINT;
    DECLARE LANE BIGINT;
    DECLARE HANDLED SMALLINT = 0;
    DECLARE SUBSCRIPTION_ID INTEGER;
    DECLARE DIRECT SMALLINT;
    DECLARE KEYED SMALLINT;
    DECLARE NAME QUEUE_TEXT;
    DECLARE QUEUE QUEUE_NAME;
    DECLARE PRIORITY_RANK SMALLINT;
    DECLARE HEAD VARCHAR(3000) CHARACTER SET OCTETS;
    DECLARE BODY QUEUE_BINARY;
    DECLARE TASK_ID BIGINT;
    DECLARE BOUNDED SMALLINT;
    DECLARE PLACED SMALLINT;
BEGIN
    TRANSACTION_ID = CURRENT_TRANSACTION;
    NOW_UTC = QUEUE_NOW();
    START_TIME = COALESCE(START_TIME, DATEADD(DELAY_MS MILLISECOND TO NOW_UTC), NOW_UTC);
    IF (EVENT IS NULL OR EVENT NOT SIMILAR TO '[A-Za-z0-9_.:/\-]{1,63}' ESCAPE '\') THEN
        EXCEPTION QUEUE_BAD_EVENT 'the name of an event must have 1 to 63 letters, digits or one of _.:/- and not be '
            || COALESCE('''' || SUBSTRING(EVENT FROM 1 FOR 80) || '''', 'NULL');
    IF (ORDER_KEY IS NOT NULL AND START_TIME > NOW_UTC) THEN
        EXCEPTION QUEUE_BAD_EVENT 'the event ' || EVENT
            || ' has both a start time and an order key: those of one key are handled '
            || 'in the order in which they are raised. Give one of the two';
    ID = NEXT VALUE FOR QUEUE_CHANGE_SEQ;
    HEAD = '{"e":"' || EVENT || '","i":' || ID || ',"t":"' || CAST(NOW_UTC AS VARCHAR(24) CHARACTER SET ASCII)
        || '","u":"'
        || CAST(REPLACE(REPLACE(CURRENT_USER, '\', '\\'), '"', '\"') AS VARCHAR(600) CHARACTER SET OCTETS) || '"'
        || IIF(ORDER_KEY IS NULL, '', ',"k":"' || CAST(REPLACE(REPLACE(ORDER_KEY, '\', '\\'), '"', '\"')
            AS VARCHAR(2040) CHARACTER SET OCTETS) || '"') || ',"d":';
    -- As a text: JSON that is not valid leaves the other events of a task readable, and cannot pass for another member.
    BODY = HEAD || '"' || REPLACE(REPLACE(COALESCE(DATA, 'null'), '\', '\\'), '"', '\"') || '"}';
    LANE = IIF(ORDER_KEY IS NULL, 0, HASH(CRYPT_HASH(ORDER_KEY USING SHA256)));
    FOR SELECT H.SUBSCRIPTION_ID, H.DIRECT, H.KEYED, H.NAME, H.QUEUE, H.PRIORITY_RANK FROM QUEUE_HANDLER H
        WHERE H.EVENT = :EVENT
        INTO :SUBSCRIPTION_ID, :DIRECT, :KEYED, :NAME, :QUEUE, :PRIORITY_RANK DO
    BEGIN
        HANDLED = 1;
        IF (DIRECT < 0) THEN
            CONTINUE;
        BOUNDED = 0;
        PLACED = 0;
        SELECT 1 FROM QUEUE_POLICY P WHERE P.QUEUE = :QUEUE AND P.MAX_LENGTH IS NOT NULL INTO :BOUNDED;
        -- Where the queue has a limit the log holds what is above it: the raiser is never refused. What has a start
        -- time is not held back, and counts.
        IF (START_TIME > NOW_UTC OR (BOUNDED = 0 AND (DIRECT = 2 OR (DIRECT = 1 AND ORDER_KEY IS NULL)))) THEN
        BEGIN
            TASK_ID = NEXT VALUE FOR QUEUE_TASK_SEQ;
            IF (BOUNDED = 1) THEN
                EXECUTE PROCEDURE FBTASKS_QUEUES.PICK_PLACE(QUEUE) RETURNING_VALUES PLACED;
            INSERT INTO QUEUE_TASK (ID, HAS_PLACE, OWNER_ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME,
                ENQUEUED_BY, CONTENT_TYPE, PAYLOAD)
            VALUES (:TASK_ID, :PLACED = 1, :SUBSCRIPTION_ID, :NAME, :QUEUE, IIF(:START_TIME > :NOW_UTC, 1, 0),
                :PRIORITY_RANK, :NOW_UTC, :START_TIME, CURRENT_USER, 'application/json',
                IIF(OCTET_LENGTH(:BODY) <= 1990, CAST('[[' || :BODY || '],{}]' AS VARCHAR(2000) CHARACTER SET OCTETS),
                    NULL));
            IF (OCTET_LENGTH(BODY) > 1990) THEN
                INSERT INTO QUEUE_PAYLOAD (ID, DATA) VALUES (:TASK_ID, '[[' || :BODY || '],{}]');
        END
        ELSE
            EXECUTE PROCEDURE FBTASKS_SOURCES.LOG_EVENT(SUBSCRIPTION_ID, CASE WHEN KEYED = 0 THEN 0
                WHEN DIRECT = 1 AND ORDER_KEY IS NULL THEN ID  -- one of its own
                ELSE LANE END, ID, NOW_UTC, BODY);
        POST_EVENT 'fbtasks:queue:' || QUEUE;
    END
    IF (HANDLED = 0) THEN
        EXECUTE PROCEDURE FBTASKS_SOURCES.LOG_EVENT(0, HASH(EVENT), ID, NOW_UTC, BODY);
    SUSPEND;
END^

-- The door for plain SQL: raises the event, with JSON. START_TIME may carry a time zone; without one it is in the
-- session's.
PROCEDURE RAISE_TEXT (
    EVENT QUEUE_TEXT, DATA QUEUE_LONG_TEXT = 'null',
    START_TIME TIMESTAMP WITH TIME ZONE = NULL, ORDER_KEY QUEUE_TEXT = NULL)
AS
    DECLARE TRANSACTION_ID BIGINT;
BEGIN
    EXECUTE PROCEDURE RAISE_EVENT(EVENT, DATA, QUEUE_UTC(START_TIME), NULL, ORDER_KEY)
        RETURNING_VALUES TRANSACTION_ID;
END^

SET TERM ; ^
