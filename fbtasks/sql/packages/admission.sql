-- Limits: how many tasks run at once, how often they begin, and in which order, for each key. A task that a limit
-- concerns waits in state 4 before its gate, with a ticket, and is let in by a claim, which takes it at once. A limit
-- is the owner of its gates, as a subscription is of its lanes (sources.sql), and keeps to the same rule: who has its
-- row of QUEUE_DISPATCH locked writes its gates and tickets; all others leave a note. A gate stays when nothing is in
-- it or behind it: of a row that is deleted and inserted again, an old transaction keeps the key each time, and who
-- looks for it meets them all. Maintenance deletes it later.
SET TERM ^ ;

PACKAGE FBTASKS_LIMITS^

-- Wakes the workers of the queues whose tasks pass a limit.
PROCEDURE WAKE_LIMIT (LIMIT_ID INTEGER)
AS
    DECLARE QUEUE QUEUE_NAME;
BEGIN
    FOR SELECT DISTINCT U.QUEUE FROM QUEUE_LIMIT_USE U WHERE U.LIMIT_ID = :LIMIT_ID
        UNION ALL
        SELECT P.QUEUE FROM QUEUE_POLICY P WHERE P.LIMIT_ID = :LIMIT_ID INTO :QUEUE DO
        POST_EVENT 'fbtasks:queue:' || QUEUE;
END^

-- Has the gates of a limit looked at anew, after the limit was changed.
PROCEDURE LIMIT_CHANGED (LIMIT_ID INTEGER)
AS
BEGIN
    INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
        VALUES (:LIMIT_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, 'C', 0, 0);
    EXECUTE PROCEDURE WAKE_LIMIT(LIMIT_ID);
END^

-- Gives back PLACES at one gate of a limit.
PRIVATE PROCEDURE FREE_PLACES (LIMIT_ID INTEGER, LANE BIGINT, PLACES INTEGER, NOW_UTC TIMESTAMP)
AS
BEGIN
    UPDATE QUEUE_GATE G SET USED = MAXVALUE(USED - :PLACES, 0),
        WAKE_TIME = IIF(G.WAITS = 1 AND G.HALTED = 0, COALESCE(WAKE_TIME, :NOW_UTC), NULL)
        WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
END^

-- Reads the notes of a limit: who ended or gave back its place, who waits. Each changes its gate and says that it is
-- to be looked at. Called by ADMIT_ONE, under its lock. MORE is 1 when it stopped at MOST.
PRIVATE PROCEDURE FOLD_NOTES (LIMIT_ID INTEGER, IN_ORDER SMALLINT, STOPS SMALLINT, AFTER_ID BIGINT, MOST INTEGER,
    NOW_UTC TIMESTAMP)
RETURNS (LAST_ID BIGINT, MORE SMALLINT)
AS
    DECLARE ID BIGINT;
    DECLARE KIND QUEUE_MARK;
    DECLARE LANE BIGINT;
    DECLARE TASK_ID BIGINT;
    DECLARE RANK SMALLINT;
    DECLARE READ_SO_FAR INTEGER = 0;
    DECLARE FREED INTEGER = 0;
    DECLARE FREED_LANE BIGINT = 0;
BEGIN
    LAST_ID = AFTER_ID;
    MORE = 0;
    FOR SELECT N.ID, N.KIND, N.LANE, N.TASK_ID FROM QUEUE_NOTE N WHERE N.OWNER_ID = :LIMIT_ID AND N.ID > :AFTER_ID
        ORDER BY N.OWNER_ID, N.ID INTO :ID, :KIND, :LANE, :TASK_ID AS CURSOR NOTES DO
    BEGIN
        IF (READ_SO_FAR >= MOST) THEN
        BEGIN
            MORE = 1;
            LEAVE;
        END
        READ_SO_FAR = READ_SO_FAR + 1;
        LAST_ID = ID;
        DELETE FROM QUEUE_NOTE WHERE CURRENT OF NOTES;
        IF (KIND = 'S' AND STOPS = 0) THEN
            KIND = 'F';
        -- Ends that follow each other at one gate are one change of it.
        IF (FREED > 0 AND (KIND NOT IN ('F', 'B') OR LANE <> FREED_LANE)) THEN
        BEGIN
            EXECUTE PROCEDURE FREE_PLACES(LIMIT_ID, FREED_LANE, FREED, NOW_UTC);
            FREED = 0;
        END
        IF (KIND = 'T') THEN
        BEGIN
            RANK = NULL;
            SELECT IIF(:IN_ORDER = 1, 0, T.PRIORITY_RANK) FROM QUEUE_TASK T WHERE T.ID = :TASK_ID AND T.STATE = 4
                INTO :RANK;
            IF (RANK IS NULL) THEN  -- it has ended
                CONTINUE;
            INSERT INTO QUEUE_TICKET (OWNER_ID, LANE, PRIORITY_RANK, TASK_ID)
                VALUES (:LIMIT_ID, :LANE, :RANK, :TASK_ID);
            -- Where nothing waited, WAKE_TIME is when a rate is to be forgotten.
            UPDATE QUEUE_GATE G SET WAITS = 1,
                WAKE_TIME = CASE WHEN G.HALTED = 1 THEN NULL WHEN G.WAITS = 1 THEN COALESCE(WAKE_TIME, :NOW_UTC)
                ELSE :NOW_UTC END, MARK_RANK = IIF(:RANK < G.MARK_RANK
                    OR (:RANK = G.MARK_RANK AND :TASK_ID <= G.MARK_ID), NULL, G.MARK_RANK)
                WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
            IF (ROW_COUNT = 0) THEN
                INSERT INTO QUEUE_GATE (OWNER_ID, LANE, WAITS, WAKE_TIME) VALUES (:LIMIT_ID, :LANE, 1, :NOW_UTC);
        END
        ELSE IF (KIND = 'C') THEN
            UPDATE QUEUE_GATE G SET WAKE_TIME = :NOW_UTC WHERE G.OWNER_ID = :LIMIT_ID AND G.WAITS = 1 AND G.HALTED = 0;
        ELSE IF (KIND = 'G') THEN
            DELETE FROM QUEUE_TICKET K WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.TASK_ID = :TASK_ID;
        ELSE IF (KIND = 'S') THEN
            UPDATE QUEUE_GATE G SET USED = MAXVALUE(USED - 1, 0), HALTED = 1, HOLDER_ID = :TASK_ID, WAKE_TIME = NULL
                WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
        ELSE IF (KIND = 'D') THEN
            UPDATE QUEUE_GATE G SET HALTED = 0, HOLDER_ID = NULL, WAKE_TIME = :NOW_UTC
                WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE AND G.HALTED = 1 AND G.HOLDER_ID = :TASK_ID;
        ELSE  -- 'F', 'B'
        BEGIN
            FREED = FREED + 1;
            FREED_LANE = LANE;
        END
    END
    IF (FREED > 0) THEN
        EXECUTE PROCEDURE FREE_PLACES(LIMIT_ID, FREED_LANE, FREED, NOW_UTC);
END^

-- Notes that the gate of a limit has let a task in, which waits at the next one of its gates, or else is to be
-- claimed: IS_CLAIMED is 1 when QUEUE, which is asking, is its own. In another queue it becomes ready.
PRIVATE PROCEDURE PASS_GATE (
    TASK_ID BIGINT, LIMIT_ID INTEGER, LANE BIGINT, TRAITS SMALLINT, TASK_QUEUE QUEUE_NAME, SUSPECT SMALLINT,
    QUEUE QUEUE_NAME)
RETURNS (IS_CLAIMED SMALLINT)
AS
    DECLARE NEXT_OWNER INTEGER;
    DECLARE NEXT_LANE BIGINT;
BEGIN
    IS_CLAIMED = 0;
    IF (BIN_AND(TRAITS, 2) > 0) THEN
    BEGIN
        UPDATE QUEUE_PATH P SET IS_IN = 1 WHERE P.TASK_ID = :TASK_ID AND P.OWNER_ID = :LIMIT_ID AND P.LANE = :LANE;
        SELECT FIRST 1 P.OWNER_ID, P.LANE FROM QUEUE_PATH P WHERE P.TASK_ID = :TASK_ID AND P.IS_IN = 0
            ORDER BY P.TASK_ID, P.STEP INTO :NEXT_OWNER, :NEXT_LANE;
    END
    IF (NEXT_OWNER IS NOT NULL) THEN
        INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
            VALUES (:NEXT_OWNER, NEXT VALUE FOR QUEUE_NOTE_SEQ, 'T', :NEXT_LANE, :TASK_ID);
    ELSE IF (TASK_QUEUE = QUEUE AND SUSPECT = 0) THEN
        IS_CLAIMED = 1;
    ELSE
    BEGIN
        UPDATE QUEUE_TASK T SET STATE = 0, TRAITS = BIN_OR(TRAITS, 512) WHERE T.ID = :TASK_ID;
        POST_EVENT 'fbtasks:queue:' || TASK_QUEUE;
    END
END^

-- Merges a task that waits into another one: who asks for the first is answered for the second from now on.
PRIVATE PROCEDURE MERGE_INTO (ID BIGINT, INTO_ID BIGINT)
AS
BEGIN
    UPDATE QUEUE_REDIRECT R SET TO_ID = :INTO_ID WHERE R.TO_ID = :ID;
    INSERT INTO QUEUE_REDIRECT (ID, TO_ID, ENQUEUED_BY)
        SELECT T.ID, :INTO_ID, T.ENQUEUED_BY FROM QUEUE_TASK T WHERE T.ID = :ID;
    DELETE FROM QUEUE_TASK T WHERE T.ID = :ID;
    DELETE FROM QUEUE_PAYLOAD P WHERE P.ID = :ID;
    DELETE FROM QUEUE_PATH P WHERE P.TASK_ID = :ID;
    POST_EVENT 'fbtasks:result:' || MOD(ID, 15);
END^

-- Has a task that runs for another one, too, be as urgent as the more urgent of them, and expire no earlier than the
-- last of them. The caller has its row locked.
PRIVATE PROCEDURE RUN_FOR_BOTH (ID BIGINT, PRIORITY_RANK SMALLINT, EXPIRE_TIME TIMESTAMP)
AS
BEGIN
    UPDATE QUEUE_TASK T SET PRIORITY_RANK = MINVALUE(T.PRIORITY_RANK, :PRIORITY_RANK),
            EXPIRE_TIME = MAXVALUE(T.EXPIRE_TIME, :EXPIRE_TIME)  -- NULL, which is never, when one of them is
        WHERE T.ID = :ID AND (T.PRIORITY_RANK > :PRIORITY_RANK OR T.EXPIRE_TIME < :EXPIRE_TIME
            OR (T.EXPIRE_TIME IS NOT NULL AND :EXPIRE_TIME IS NULL));
END^

-- Looks for a task into which a unique call would be merged, before it is enqueued: the ID of one that has not begun.
-- Of a gate marked l or L it is locked until the caller's transaction ends, so that it begins after that; it is one
-- of the caller's own user, which may ask for its result. Of one marked r or R the exception QUEUE_DUPLICATE tells
-- its ID: that undoes the lock, and all else of the statement. Who gets the lock knows that the task has not begun,
-- whatever the caller's transaction sees. What it does not see, or another transaction holds, is not found: the call
-- is enqueued, and merged by a claim.
PROCEDURE FIND_DUPLICATE (
    GATES VARCHAR(320) CHARACTER SET ASCII, IS_DUE SMALLINT, PRIORITY_RANK SMALLINT, EXPIRE_TIME TIMESTAMP)
RETURNS (ID BIGINT)
AS
    DECLARE RAISES SMALLINT;
    DECLARE LIMIT_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE HOLDER_ID BIGINT;
    DECLARE WAITS SMALLINT;
    DECLARE FREE_US BIGINT;
    DECLARE UNIQUE_UNTIL VARCHAR(5) CHARACTER SET ASCII;
    DECLARE TASK_ID BIGINT;
BEGIN
    RAISES = IIF(GATES STARTING WITH 'r' OR GATES STARTING WITH 'R', 1, 0);
    IF (RAISES = 0 AND IS_DUE = 0) THEN
        EXIT;
    LIMIT_ID = CAST(SUBSTRING(GATES FROM 2 FOR 11) AS INTEGER);
    LANE = CAST(SUBSTRING(GATES FROM 13 FOR 20) AS BIGINT);
    SELECT G.HOLDER_ID, G.WAITS, G.FREE_US FROM QUEUE_GATE G WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE
        INTO :HOLDER_ID, :WAITS, :FREE_US;
    FOR SELECT :HOLDER_ID FROM RDB$DATABASE WHERE :HOLDER_ID IS NOT NULL
        UNION ALL
        SELECT K.TASK_ID FROM (SELECT FIRST 20 N.TASK_ID FROM QUEUE_TICKET N
            WHERE N.OWNER_ID = :LIMIT_ID AND N.LANE = :LANE
            ORDER BY N.OWNER_ID, N.LANE, N.PRIORITY_RANK, N.TASK_ID) K
        INTO :TASK_ID DO
    BEGIN
        SELECT T.ID FROM QUEUE_TASK T
            WHERE T.ID = :TASK_ID AND (T.STATE IN (0, 3, 4) OR (T.STATE = 1 AND :RAISES = 1))
                AND (:RAISES = 1 OR T.ENQUEUED_BY = CURRENT_USER)
            FOR UPDATE WITH LOCK SKIP LOCKED INTO :ID;
        IF (ID IS NOT NULL) THEN
            LEAVE;
    END
    IF (ID IS NOT NULL AND RAISES = 0) THEN
        EXECUTE PROCEDURE RUN_FOR_BOTH(ID, PRIORITY_RANK, EXPIRE_TIME);
    ELSE IF (ID IS NULL AND HOLDER_ID IS NOT NULL AND RDB$GET_CONTEXT('SYSTEM',
        'ISOLATION_LEVEL') = 'READ COMMITTED') THEN
    BEGIN
        -- One that has begun: of which a snapshot does not tell what has become.
        SELECT L.UNIQUE_UNTIL FROM QUEUE_LIMIT L WHERE L.ID = :LIMIT_ID INTO :UNIQUE_UNTIL;
        IF (UNIQUE_UNTIL = 'end') THEN
            SELECT T.ID FROM QUEUE_TASK T WHERE T.ID = :HOLDER_ID AND (:RAISES = 1 OR T.ENQUEUED_BY = CURRENT_USER)
                INTO :ID;
        IF (ID IS NULL AND WAITS = 0 AND FREE_US > 1000 * CAST(DATEDIFF(MILLISECOND FROM TIMESTAMP '1970-01-01'
                TO QUEUE_NOW()) AS BIGINT)) THEN
            SELECT FIRST 1 P.ID FROM (
                SELECT T.ID, T.ENQUEUED_BY FROM QUEUE_TASK T WHERE T.ID = :HOLDER_ID
                UNION ALL SELECT H.ID, H.ENQUEUED_BY FROM QUEUE_HISTORY H WHERE H.ID = :HOLDER_ID AND H.STATE = 10) P
                WHERE :RAISES = 1 OR P.ENQUEUED_BY = CURRENT_USER INTO :ID;
    END
    IF (ID IS NOT NULL AND RAISES = 1) THEN
        EXCEPTION QUEUE_DUPLICATE ID;
END^

-- Reads the notes of a limit of unique tasks: of those that come with one key, one is kept. A gate has it as its
-- holder: it waits there (WAITS = 1), or was let in. Called by ADMIT_ONE, under its lock. MORE is 1 when it stopped
-- at MOST, or when another transaction had a task that it met.
PRIVATE PROCEDURE FOLD_UNIQUE (LIMIT_ID INTEGER, AFTER_ID BIGINT, MOST INTEGER, NOW_UTC TIMESTAMP)
RETURNS (LAST_ID BIGINT, MORE SMALLINT)
AS
    DECLARE UNIQUE_UNTIL VARCHAR(5) CHARACTER SET ASCII;
    DECLARE REPLACES SMALLINT;
    DECLARE QUIET_MS BIGINT;
    DECLARE MOST_MS BIGINT;
    DECLARE NOW_US BIGINT;
    DECLARE UP_TO_ID BIGINT;
    DECLARE ID BIGINT;
    DECLARE KIND QUEUE_MARK;
    DECLARE LANE BIGINT;
    DECLARE TASK_ID BIGINT;
    DECLARE RANK SMALLINT;
    DECLARE EXPIRE_TIME TIMESTAMP;
    DECLARE HOLDER_ID BIGINT;
    DECLARE HOLDER_RANK SMALLINT;
    DECLARE HOLDER_EXPIRE_TIME TIMESTAMP;
    DECLARE HOLDER_STATE SMALLINT;
    DECLARE WAITS SMALLINT;
    DECLARE FREE_US BIGINT;
    DECLARE FIRST_US BIGINT;
    DECLARE BIT_NO SMALLINT;
    DECLARE MERGES SMALLINT;  -- 1: it into the holder; 2: the holder into it
    DECLARE READ_SO_FAR INTEGER = 0;
BEGIN
    LAST_ID = AFTER_ID;
    MORE = 0;
    UP_TO_ID = GEN_ID(QUEUE_NOTE_SEQ, 0);  -- what is noted again here is read the next time
    NOW_US = 1000 * CAST(DATEDIFF(MILLISECOND FROM TIMESTAMP '1970-01-01' TO NOW_UTC) AS BIGINT);
    SELECT L.UNIQUE_UNTIL, L.REPLACES, L.QUIET_MS, L.MOST_MS FROM QUEUE_LIMIT L WHERE L.ID = :LIMIT_ID
        INTO :UNIQUE_UNTIL, :REPLACES, :QUIET_MS, :MOST_MS;
    FOR SELECT N.ID, N.KIND, N.LANE, N.TASK_ID FROM QUEUE_NOTE N
        WHERE N.OWNER_ID = :LIMIT_ID AND N.ID BETWEEN :AFTER_ID + 1 AND :UP_TO_ID
        ORDER BY N.OWNER_ID, N.ID INTO :ID, :KIND, :LANE, :TASK_ID AS CURSOR NOTES DO
    BEGIN
        IF (READ_SO_FAR >= MOST) THEN
        BEGIN
            MORE = 1;
            LEAVE;
        END
        READ_SO_FAR = READ_SO_FAR + 1;
        LAST_ID = ID;
        DELETE FROM QUEUE_NOTE WHERE CURRENT OF NOTES;
        IF (KIND IN ('C', 'D')) THEN  -- neither opens nor shuts a gate here
            CONTINUE;
        HOLDER_ID = NULL; WAITS = 0; FREE_US = NULL;
        SELECT G.HOLDER_ID, G.WAITS, G.FREE_US FROM QUEUE_GATE G WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE
            INTO :HOLDER_ID, :WAITS, :FREE_US;
        IF (KIND <> 'T') THEN
        BEGIN
            -- It is gone, or goes back to the beginning. Others are still merged into it for the time that was set,
            -- if it has succeeded.
            DELETE FROM QUEUE_TICKET K WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.PRIORITY_RANK = 0
                AND K.TASK_ID = :TASK_ID;
            IF (HOLDER_ID = TASK_ID AND (WAITS = 1 OR KIND = 'B' OR COALESCE(FREE_US, 0) <= NOW_US
                    OR EXISTS(SELECT 1 FROM QUEUE_HISTORY H WHERE H.ID = :TASK_ID AND H.STATE <> 10))) THEN
                UPDATE QUEUE_GATE G SET HOLDER_ID = NULL, WAITS = 0, FREE_US = NULL, WAKE_TIME = NULL
                    WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
            ELSE IF (HOLDER_ID = TASK_ID) THEN
                UPDATE QUEUE_GATE G SET WAKE_TIME = DATEADD(:FREE_US / 1000 MILLISECOND TO TIMESTAMP '1970-01-01')
                    WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE AND G.WAKE_TIME IS NULL;
            -- Who waits for the result of a task that was merged into it listens to that one's event.
            FOR SELECT DISTINCT MOD(R.ID, 15) FROM QUEUE_REDIRECT R WHERE R.TO_ID = :TASK_ID INTO :BIT_NO DO
                POST_EVENT 'fbtasks:result:' || BIT_NO;
            CONTINUE;
        END
        RANK = NULL;
        SELECT T.PRIORITY_RANK, T.EXPIRE_TIME FROM QUEUE_TASK T WHERE T.ID = :TASK_ID AND T.STATE = 4
            FOR UPDATE WITH LOCK SKIP LOCKED INTO :RANK, :EXPIRE_TIME;
        MERGES = IIF(RANK IS NULL, NULL, 0);
        IF (HOLDER_ID <> TASK_ID AND MERGES = 0) THEN
        BEGIN
            -- Whose row can be locked has not been claimed: only then does it begin after this one was committed.
            HOLDER_RANK = NULL;
            SELECT T.PRIORITY_RANK, T.EXPIRE_TIME FROM QUEUE_TASK T WHERE T.ID = :HOLDER_ID AND T.STATE IN (0, 1, 3, 4)
                FOR UPDATE WITH LOCK SKIP LOCKED INTO :HOLDER_RANK, :HOLDER_EXPIRE_TIME;
            IF (HOLDER_RANK IS NOT NULL) THEN
                -- The newest is the one that was enqueued last: not one that is tried again.
                MERGES = IIF(REPLACES = 1 AND TASK_ID > HOLDER_ID, 2, 1);
            ELSE
            BEGIN
                HOLDER_STATE = NULL;
                SELECT T.STATE FROM QUEUE_TASK T WHERE T.ID = :HOLDER_ID INTO :HOLDER_STATE;
                MERGES = CASE
                    WHEN FREE_US > NOW_US AND WAITS = 0 THEN 1
                    WHEN UNIQUE_UNTIL = 'end' AND HOLDER_STATE IS NOT NULL AND WAITS = 0 THEN 1
                    WHEN HOLDER_STATE = 4 THEN NULL
                    ELSE 0 END;
            END
        END
        IF (MERGES IS NULL) THEN
        BEGIN
            -- Another transaction is at it or at the holder, which is to be looked at again; or it has ended.
            IF (EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :TASK_ID AND T.STATE = 4)) THEN
            BEGIN
                INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
                    VALUES (:LIMIT_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, 'T', :LANE, :TASK_ID);
                MORE = 1;
            END
            CONTINUE;
        END
        FIRST_US = IIF(MERGES > 0 AND WAITS = 1, COALESCE(FREE_US, NOW_US), NOW_US);
        IF (MERGES = 1) THEN
        BEGIN
            EXECUTE PROCEDURE MERGE_INTO(TASK_ID, HOLDER_ID);
            IF (HOLDER_RANK IS NOT NULL) THEN
                EXECUTE PROCEDURE RUN_FOR_BOTH(HOLDER_ID, RANK, EXPIRE_TIME);
        END
        ELSE IF (MERGES = 2) THEN
        BEGIN
            EXECUTE PROCEDURE MERGE_INTO(HOLDER_ID, TASK_ID);
            EXECUTE PROCEDURE RUN_FOR_BOTH(TASK_ID, HOLDER_RANK, HOLDER_EXPIRE_TIME);
        END
        -- Never before now: what has a WAKE_TIME before the mark of the limit is not looked at.
        IF (MERGES <> 1 OR (REPLACES = 1 AND WAITS = 1)) THEN
            UPDATE OR INSERT INTO QUEUE_GATE (OWNER_ID, LANE, HOLDER_ID, WAITS, FREE_US, WAKE_TIME)
                VALUES (:LIMIT_ID, :LANE, IIF(:MERGES = 1, :HOLDER_ID, :TASK_ID), 1, :FIRST_US,
                    DATEADD(MAXVALUE(0, MINVALUE(1000 * :QUIET_MS,
                        :FIRST_US + 1000 * :MOST_MS - :NOW_US)) / 1000 MILLISECOND TO :NOW_UTC))
                MATCHING (OWNER_ID, LANE);
    END
END^

-- Reads the notes of a limit that lets tasks in by batches. A gate of it, one for each queue, has in USED how many
-- wait, and in FREE_US since when the oldest one does; HOLDER_ID is the first in its line. It stays when none does.
-- Called by ADMIT_ONE, under its lock. MORE is 1 when it stopped at MOST.
PRIVATE PROCEDURE FOLD_BATCHES (LIMIT_ID INTEGER, AFTER_ID BIGINT, MOST INTEGER, NOW_UTC TIMESTAMP)
RETURNS (LAST_ID BIGINT, MORE SMALLINT)
AS
    DECLARE ID BIGINT;
    DECLARE KIND QUEUE_MARK;
    DECLARE LANE BIGINT;
    DECLARE TASK_ID BIGINT;
    DECLARE RANK SMALLINT;
    DECLARE SINCE_US BIGINT;
    DECLARE READ_SO_FAR INTEGER = 0;
BEGIN
    LAST_ID = AFTER_ID;
    MORE = 0;
    FOR SELECT N.ID, N.KIND, N.LANE, N.TASK_ID FROM QUEUE_NOTE N WHERE N.OWNER_ID = :LIMIT_ID AND N.ID > :AFTER_ID
        ORDER BY N.OWNER_ID, N.ID INTO :ID, :KIND, :LANE, :TASK_ID AS CURSOR NOTES DO
    BEGIN
        IF (READ_SO_FAR >= MOST) THEN
        BEGIN
            MORE = 1;
            LEAVE;
        END
        READ_SO_FAR = READ_SO_FAR + 1;
        LAST_ID = ID;
        DELETE FROM QUEUE_NOTE WHERE CURRENT OF NOTES;
        IF (KIND = 'T') THEN
        BEGIN
            RANK = NULL;
            SELECT T.PRIORITY_RANK, 1000 * CAST(DATEDIFF(MILLISECOND
                FROM TIMESTAMP '1970-01-01' TO T.START_TIME) AS BIGINT)
                FROM QUEUE_TASK T WHERE T.ID = :TASK_ID AND T.STATE = 4 INTO :RANK, :SINCE_US;
            IF (RANK IS NULL) THEN  -- it has ended
                CONTINUE;
            INSERT INTO QUEUE_TICKET (OWNER_ID, LANE, PRIORITY_RANK, TASK_ID)
                VALUES (:LIMIT_ID, :LANE, :RANK, :TASK_ID);
            UPDATE QUEUE_GATE G SET WAITS = 1, USED = USED + 1,
                FREE_US = IIF(G.WAITS = 1, MINVALUE(FREE_US, :SINCE_US), :SINCE_US),
                HOLDER_ID = IIF(G.WAITS = 1, G.HOLDER_ID, :TASK_ID), WAKE_TIME = :NOW_UTC,
                    MARK_RANK = IIF(:RANK < G.MARK_RANK OR (:RANK = G.MARK_RANK AND :TASK_ID <= G.MARK_ID), NULL,
                    G.MARK_RANK)
                WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
            IF (ROW_COUNT = 0) THEN
                INSERT INTO QUEUE_GATE (OWNER_ID, LANE, WAITS, USED, FREE_US, HOLDER_ID, WAKE_TIME)
                    VALUES (:LIMIT_ID, :LANE, 1, 1, :SINCE_US, :TASK_ID, :NOW_UTC);
        END
        ELSE IF (KIND = 'G') THEN
        BEGIN
            DELETE FROM QUEUE_TICKET K WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.TASK_ID = :TASK_ID;
            IF (ROW_COUNT > 0) THEN
                UPDATE QUEUE_GATE G SET USED = USED - 1, WAKE_TIME = :NOW_UTC
                    WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
        END
        ELSE IF (KIND = 'C') THEN
            UPDATE QUEUE_GATE G SET WAKE_TIME = :NOW_UTC WHERE G.OWNER_ID = :LIMIT_ID AND G.WAITS = 1;
    END
END^

-- Lets in the batches of a limit that QUEUE is to claim now: each, whatever its size, takes one of ROOM; MOST_IDS of
-- tasks in all. Those of another queue are left for a claim from that. Called by ADMIT_ONE, under its lock; the other
-- parameters are its own.
PRIVATE PROCEDURE OPEN_BATCHES (
    LIMIT_ID INTEGER, QUEUE QUEUE_NAME, BATCH INTEGER, WAIT_MS BIGINT, ROOM INTEGER, MOST_IDS INTEGER,
    READY_RANK SMALLINT, LESS_SAME INTEGER, LESS_HIGHER INTEGER, NOW_UTC TIMESTAMP)
RETURNS (IDS VARCHAR(32000) CHARACTER SET ASCII, ROOM_LEFT INTEGER)
AS
    DECLARE EPOCH TIMESTAMP = TIMESTAMP '1970-01-01';
    DECLARE NOW_US BIGINT;
    DECLARE LANE BIGINT;
    DECLARE WAITING INTEGER;
    DECLARE SINCE_US BIGINT;
    DECLARE MARK_RANK SMALLINT;
    DECLARE MARK_ID BIGINT;
    DECLARE AT_RANK SMALLINT;
    DECLARE AT_ID BIGINT;
    DECLARE SKIPPED_ID BIGINT;
    DECLARE TAKEN INTEGER;
    DECLARE IS_FIRST SMALLINT;
    DECLARE VERDICT QUEUE_MARK;
    DECLARE TASK_ID BIGINT;
    DECLARE TASK_QUEUE QUEUE_NAME;
    DECLARE TRAITS SMALLINT;
    DECLARE SUSPECT SMALLINT;
    DECLARE EXPIRE_TIME TIMESTAMP;
    DECLARE IS_CLAIMED SMALLINT;
BEGIN
    IDS = '';
    ROOM_LEFT = ROOM;
    NOW_US = 1000 * CAST(DATEDIFF(MILLISECOND FROM EPOCH TO NOW_UTC) AS BIGINT);
    FOR SELECT G.LANE, G.USED, G.FREE_US, G.MARK_RANK, G.MARK_ID FROM QUEUE_GATE G
        WHERE G.OWNER_ID = :LIMIT_ID AND G.WAITS = 1
        INTO :LANE, :WAITING, :SINCE_US, :MARK_RANK, :MARK_ID DO
    BEGIN
        AT_RANK = COALESCE(MARK_RANK, -9999);
        AT_ID = IIF(MARK_RANK IS NULL, 0, MARK_ID);
        SKIPPED_ID = NULL;
        TAKEN = 0;
        IS_FIRST = 1;
        -- next; E: nothing waits, S: it is no batch yet, R: no room for it, L: what is left is locked, Q: of another
        -- queue
        VERDICT = 'N';
        WHILE (VERDICT = 'N') DO
        BEGIN
            TASK_ID = NULL;
            SELECT FIRST 1 K.TASK_ID FROM QUEUE_TICKET K
                WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.PRIORITY_RANK = :AT_RANK AND K.TASK_ID > :AT_ID
                ORDER BY K.OWNER_ID, K.LANE, K.PRIORITY_RANK, K.TASK_ID INTO :TASK_ID;
            IF (TASK_ID IS NULL) THEN
                SELECT FIRST 1 K.PRIORITY_RANK, K.TASK_ID FROM QUEUE_TICKET K
                    WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.PRIORITY_RANK >= :AT_RANK + 1
                    ORDER BY K.OWNER_ID, K.LANE, K.PRIORITY_RANK, K.TASK_ID INTO :AT_RANK, :TASK_ID;
            IF (TASK_ID IS NULL) THEN
            BEGIN
                VERDICT = IIF(SKIPPED_ID IS NULL, 'E', 'L');
                LEAVE;
            END
            IF (IS_FIRST = 1) THEN  -- here a batch begins
            BEGIN
                TASK_QUEUE = NULL;
                SELECT T.QUEUE FROM QUEUE_TASK T WHERE T.ID = :TASK_ID INTO :TASK_QUEUE;
                IF (TASK_QUEUE <> QUEUE) THEN
                    VERDICT = 'Q';
                ELSE IF (WAITING < BATCH AND SINCE_US + 1000 * WAIT_MS > NOW_US) THEN
                    VERDICT = 'S';
                ELSE IF (CHAR_LENGTH(IDS) / 19 + BATCH > MOST_IDS
                        OR ROOM_LEFT <= CASE WHEN AT_RANK < READY_RANK THEN 0 WHEN AT_RANK = READY_RANK THEN LESS_SAME
                        ELSE LESS_HIGHER END) THEN
                    VERDICT = 'R';
                IF (VERDICT <> 'N') THEN
                    LEAVE;
                IS_FIRST = 0;
            END
            AT_ID = TASK_ID;
            TASK_QUEUE = NULL;
            SELECT T.QUEUE, T.TRAITS, T.SUSPECT, T.EXPIRE_TIME FROM QUEUE_TASK T WHERE T.ID = :TASK_ID AND T.STATE = 4
                FOR UPDATE WITH LOCK SKIP LOCKED INTO :TASK_QUEUE, :TRAITS, :SUSPECT, :EXPIRE_TIME;
            IF (TASK_QUEUE IS NULL AND EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :TASK_ID AND T.STATE = 4)) THEN
            BEGIN
                SKIPPED_ID = COALESCE(SKIPPED_ID, TASK_ID);
                CONTINUE;
            END
            DELETE FROM QUEUE_TICKET K WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.PRIORITY_RANK = :AT_RANK
                AND K.TASK_ID = :TASK_ID;
            WAITING = WAITING - 1;
            IF (SKIPPED_ID IS NULL) THEN
            BEGIN
                MARK_RANK = AT_RANK;
                MARK_ID = TASK_ID;
            END
            IF (TASK_QUEUE IS NULL) THEN
                CONTINUE;
            IF (EXPIRE_TIME <= NOW_UTC) THEN
            BEGIN
                EXECUTE PROCEDURE FBTASKS_CORE.ARCHIVE(TASK_ID, 12, NULL, 0, NULL, 'expired before it began', NULL,
                    NULL, NULL);
                CONTINUE;
            END
            EXECUTE PROCEDURE PASS_GATE(TASK_ID, LIMIT_ID, LANE, TRAITS, TASK_QUEUE, SUSPECT, QUEUE)
                RETURNING_VALUES IS_CLAIMED;
            IF (IS_CLAIMED = 1) THEN
            BEGIN
                IDS = IDS || LPAD(TASK_ID, 19, '0');
                ROOM_LEFT = ROOM_LEFT - IIF(TAKEN = 0, 1, 0);
                TAKEN = TAKEN + 1;
            END
            IF (TAKEN >= BATCH) THEN  -- the next one begins
            BEGIN
                TAKEN = 0;
                IS_FIRST = 1;
                IF (WAITING < BATCH) THEN
                    SELECT 1000 * CAST(DATEDIFF(MILLISECOND FROM :EPOCH TO MIN(T.START_TIME)) AS BIGINT)
                        FROM QUEUE_TICKET K JOIN QUEUE_TASK T ON T.ID = K.TASK_ID
                        WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE
                            AND K.PRIORITY_RANK >= IIF(:SKIPPED_ID IS NULL, :AT_RANK, -9999) INTO :SINCE_US;
                SINCE_US = COALESCE(SINCE_US, NOW_US);
            END
        END
        UPDATE QUEUE_GATE G SET USED = IIF(:VERDICT = 'E', 0, :WAITING), FREE_US = :SINCE_US,
            WAITS = IIF(:VERDICT = 'E', 0, 1), HOLDER_ID = COALESCE(:SKIPPED_ID, :TASK_ID), MARK_RANK = :MARK_RANK,
                MARK_ID = :MARK_ID, WAKE_TIME = CASE
                WHEN :VERDICT = 'E' THEN NULL
                WHEN :VERDICT = 'R' THEN DATEADD(1 MILLISECOND TO :NOW_UTC)
                WHEN :VERDICT = 'L' THEN DATEADD(1 SECOND TO :NOW_UTC)
                WHEN :WAITING >= :BATCH THEN :NOW_UTC
                ELSE DATEADD((:SINCE_US - :NOW_US) / 1000 + :WAIT_MS MILLISECOND TO :NOW_UTC) END
            WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
    END
END^

-- Lets in tasks of one limit that QUEUE is to claim now: their ids, of 19 digits, in IDS. Up to ROOM; of the rank
-- READY_RANK, which is that of the first ready task, only while more than LESS_SAME of the room is left, and of
-- higher ranks while more than LESS_HIGHER is: that room is for what is ready. A task of another queue becomes ready
-- there. Who has the limit's row of QUEUE_DISPATCH locked does this, and sees all that was done under that lock
-- before; MISSED is 1 when another one has it, or when there is more to look at.
PRIVATE PROCEDURE ADMIT_ONE (
    LIMIT_ID INTEGER, QUEUE QUEUE_NAME, FROM_START SMALLINT, ROOM INTEGER, READY_RANK SMALLINT,
    LESS_SAME INTEGER, LESS_HIGHER INTEGER)
RETURNS (IDS VARCHAR(32000) CHARACTER SET ASCII, ROOM_LEFT INTEGER, MISSED SMALLINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE NOW_US BIGINT;
    DECLARE AT_ONCE INTEGER;
    DECLARE PERIOD_US BIGINT;
    DECLARE BURST INTEGER;
    DECLARE IN_ORDER SMALLINT;
    DECLARE STOPS SMALLINT;
    DECLARE PAUSED SMALLINT;
    DECLARE NOTE_ID BIGINT;
    DECLARE READ_ID BIGINT;
    DECLARE VISITS INTEGER = 0;
    DECLARE WAKE_TIME TIMESTAMP;
    DECLARE LANE BIGINT;
    DECLARE USED INTEGER;
    DECLARE FREE_US BIGINT;
    DECLARE TOKEN_US BIGINT;
    DECLARE MARK_RANK SMALLINT;
    DECLARE MARK_ID BIGINT;
    DECLARE RANK SMALLINT;
    DECLARE TASK_ID BIGINT;
    DECLARE TASK_QUEUE QUEUE_NAME;
    DECLARE TRAITS SMALLINT;
    DECLARE SUSPECT SMALLINT;
    DECLARE EXPIRE_TIME TIMESTAMP;
    DECLARE IS_CLAIMED SMALLINT;
    DECLARE UNIQUE_UNTIL VARCHAR(5) CHARACTER SET ASCII;
    DECLARE LASTS_MS BIGINT;
    DECLARE BATCH INTEGER;
    DECLARE WAIT_MS BIGINT;
    DECLARE HOLDER_ID BIGINT;
    DECLARE WAITS SMALLINT;
    DECLARE WAKE_MARK TIMESTAMP;
    DECLARE AT_RANK SMALLINT;
    DECLARE AT_ID BIGINT;
    DECLARE PAUSES SMALLINT;
    DECLARE PASSED_OVER INTEGER = 0;
    DECLARE SKIPPED SMALLINT;
    DECLARE VERDICT QUEUE_MARK;
BEGIN
    IDS = '';
    ROOM_LEFT = ROOM;
    MISSED = 0;
    SELECT D.MARK_ID, D.WAKE_MARK FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = :LIMIT_ID
        FOR UPDATE WITH LOCK SKIP LOCKED INTO :NOTE_ID, :WAKE_MARK;
    IF (NOTE_ID IS NULL) THEN
    BEGIN
        MISSED = 1;
        EXIT;
    END
    -- Never before what was there under the lock: this statement may have begun before that one.
    WAKE_MARK = COALESCE(WAKE_MARK, TIMESTAMP '0001-01-01');
    NOW_UTC = MAXVALUE(QUEUE_NOW(), WAKE_MARK);
    NOW_US = 1000 * CAST(DATEDIFF(MILLISECOND FROM TIMESTAMP '1970-01-01' TO NOW_UTC) AS BIGINT);
    SELECT COALESCE(L.SET_AT_ONCE, L.AT_ONCE, 2147483647), COALESCE(L.SET_PERIOD_US, L.PERIOD_US, 0),
            COALESCE(L.SET_BURST, L.BURST, 1), L.IN_ORDER, L.STOPS, L.PAUSED, L.UNIQUE_UNTIL, L.LASTS_MS, L.BATCH,
                L.WAIT_MS
        FROM QUEUE_LIMIT L WHERE L.ID = :LIMIT_ID
        INTO :AT_ONCE, :PERIOD_US, :BURST, :IN_ORDER, :STOPS, :PAUSED, :UNIQUE_UNTIL, :LASTS_MS, :BATCH, :WAIT_MS;
    READ_ID = IIF(FROM_START = 1, 0, NOTE_ID);
    IF (IN_ORDER = 1 AND FROM_START = 0) THEN
        EXECUTE PROCEDURE FBTASKS_SOURCES.LOOK_BACK(LIMIT_ID) RETURNING_VALUES READ_ID;
    IF (EXISTS(SELECT 1 FROM QUEUE_NOTE N WHERE N.OWNER_ID = :LIMIT_ID AND N.ID > :READ_ID
        ORDER BY N.OWNER_ID, N.ID)) THEN
    BEGIN
        IF (BATCH IS NOT NULL) THEN
            EXECUTE PROCEDURE FOLD_BATCHES(LIMIT_ID, READ_ID, MAXVALUE(500, BATCH), NOW_UTC)
                RETURNING_VALUES READ_ID, MISSED;
        ELSE IF (UNIQUE_UNTIL IS NULL) THEN
            EXECUTE PROCEDURE FOLD_NOTES(LIMIT_ID, IN_ORDER, STOPS, READ_ID, 500, NOW_UTC)
                RETURNING_VALUES READ_ID, MISSED;
        ELSE
            EXECUTE PROCEDURE FOLD_UNIQUE(LIMIT_ID, READ_ID, 500, NOW_UTC) RETURNING_VALUES READ_ID, MISSED;
        NOTE_ID = IIF(IN_ORDER = 1, MAXVALUE(NOTE_ID, READ_ID), READ_ID);
    END
    IF (IN_ORDER = 1) THEN
        EXECUTE PROCEDURE FBTASKS_SOURCES.MOVE_BACK(LIMIT_ID, READ_ID, 1 - MISSED);

    IF (BATCH IS NOT NULL AND PAUSED = 0) THEN
        EXECUTE PROCEDURE OPEN_BATCHES(LIMIT_ID, QUEUE, BATCH, WAIT_MS, ROOM, 1000, READY_RANK, LESS_SAME, LESS_HIGHER,
            NOW_UTC)
            RETURNING_VALUES IDS, ROOM_LEFT;
    -- What another queue may not claim now has no place given to it: it is passed over.
    PAUSES = IIF(EXISTS(SELECT 1 FROM QUEUE_POLICY P WHERE P.PAUSED = 1 AND P.QUEUE <> :QUEUE), 1, 0);
    -- Gates at which there may be something to do, those first that have waited for longest. None has a WAKE_TIME
    -- before the mark: what is there, are versions that an old transaction keeps.
    WHILE (BATCH IS NULL AND PAUSED = 0 AND ROOM_LEFT > 0 AND VISITS < 200) DO
    BEGIN
        LANE = NULL;
        SELECT FIRST 1 G.LANE, G.USED, G.FREE_US, G.MARK_RANK, G.MARK_ID, G.WAKE_TIME, G.HOLDER_ID, G.WAITS
            FROM QUEUE_GATE G
            WHERE G.OWNER_ID = :LIMIT_ID AND G.WAKE_TIME BETWEEN :WAKE_MARK AND :NOW_UTC
            ORDER BY G.OWNER_ID, G.WAKE_TIME
            INTO :LANE, :USED, :FREE_US, :MARK_RANK, :MARK_ID, :WAKE_MARK, :HOLDER_ID, :WAITS;
        IF (LANE IS NULL) THEN
            LEAVE;
        VISITS = VISITS + 1;
        IF (UNIQUE_UNTIL IS NOT NULL) THEN
        BEGIN
            TASK_QUEUE = NULL;
            SELECT T.QUEUE, T.TRAITS, T.SUSPECT, T.PRIORITY_RANK FROM QUEUE_TASK T
                WHERE T.ID = :HOLDER_ID AND T.STATE = 4 AND :WAITS = 1
                FOR UPDATE WITH LOCK SKIP LOCKED INTO :TASK_QUEUE, :TRAITS, :SUSPECT, :AT_RANK;
            VERDICT = CASE
                WHEN TASK_QUEUE IS NULL THEN IIF(WAITS = 1 AND EXISTS(
                    SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :HOLDER_ID AND T.STATE = 4), 'L', 'E')
                WHEN ROOM_LEFT <= CASE WHEN AT_RANK < READY_RANK THEN 0 WHEN AT_RANK = READY_RANK THEN LESS_SAME
                    ELSE LESS_HIGHER END THEN 'R'
                ELSE 'N' END;
            IF (VERDICT = 'E') THEN
                UPDATE QUEUE_GATE G SET HOLDER_ID = NULL, WAITS = 0, FREE_US = NULL, WAKE_TIME = NULL
                    WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
            ELSE
                UPDATE QUEUE_GATE G SET WAITS = IIF(:VERDICT = 'N', 0, 1),
                    FREE_US = IIF(:VERDICT = 'N', :NOW_US + 1000 * :LASTS_MS, FREE_US),
                    WAKE_TIME = IIF(:VERDICT = 'N', IIF(:LASTS_MS > 0 AND :UNIQUE_UNTIL = 'start',
                        -- locked, it is for a moment
                        DATEADD(:LASTS_MS MILLISECOND TO :NOW_UTC), NULL),
                            DATEADD(IIF(:VERDICT = 'R', 1, 20) MILLISECOND TO :NOW_UTC))
                    WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
            IF (VERDICT = 'N') THEN
            BEGIN
                DELETE FROM QUEUE_TICKET K WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.PRIORITY_RANK = 0
                    AND K.TASK_ID = :HOLDER_ID;
                EXECUTE PROCEDURE PASS_GATE(HOLDER_ID, LIMIT_ID, LANE, TRAITS, TASK_QUEUE, SUSPECT, QUEUE)
                    RETURNING_VALUES IS_CLAIMED;
                IF (IS_CLAIMED = 1) THEN
                BEGIN
                    IDS = IDS || LPAD(HOLDER_ID, 19, '0');
                    ROOM_LEFT = ROOM_LEFT - 1;
                END
            END
            CONTINUE;
        END
        IF (PERIOD_US > 0 AND FREE_US > NOW_US + PERIOD_US) THEN
            FREE_US = NOW_US + PERIOD_US;  -- the rate was lower when the last one was let in
        AT_RANK = COALESCE(MARK_RANK, -9999);
        AT_ID = COALESCE(MARK_ID, 0);
        SKIPPED = 0;
        VERDICT = 'N';  -- next; E: nothing waits, S: it is shut, R: no room for what waits, L: what is first is locked
        WHILE (VERDICT = 'N') DO
        BEGIN
            TASK_ID = NULL;
            SELECT FIRST 1 K.TASK_ID FROM QUEUE_TICKET K
                WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.PRIORITY_RANK = :AT_RANK AND K.TASK_ID > :AT_ID
                ORDER BY K.OWNER_ID, K.LANE, K.PRIORITY_RANK, K.TASK_ID INTO :TASK_ID;
            IF (TASK_ID IS NULL) THEN
                SELECT FIRST 1 K.PRIORITY_RANK, K.TASK_ID FROM QUEUE_TICKET K
                    WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.PRIORITY_RANK >= :AT_RANK + 1
                    ORDER BY K.OWNER_ID, K.LANE, K.PRIORITY_RANK, K.TASK_ID INTO :AT_RANK, :TASK_ID;
            TOKEN_US = MAXVALUE(COALESCE(FREE_US, 0), NOW_US - (BURST - 1) * PERIOD_US);
            IF (TASK_ID IS NULL) THEN
                VERDICT = IIF(SKIPPED = 1, 'L', 'E');
            ELSE IF (USED >= AT_ONCE OR (PERIOD_US > 0 AND TOKEN_US > NOW_US)) THEN
                VERDICT = 'S';
            ELSE IF (ROOM_LEFT <= CASE WHEN AT_RANK < READY_RANK THEN 0 WHEN AT_RANK = READY_RANK THEN LESS_SAME
                    ELSE LESS_HIGHER END) THEN
                VERDICT = 'R';
            ELSE
            BEGIN
                AT_ID = TASK_ID;
                IF (PAUSES = 1 AND EXISTS(SELECT 1 FROM QUEUE_TASK T JOIN QUEUE_POLICY P ON P.QUEUE = T.QUEUE
                        WHERE T.ID = :TASK_ID AND P.PAUSED = 1)) THEN
                BEGIN
                    SKIPPED = 1;
                    PASSED_OVER = PASSED_OVER + 1;
                    VERDICT = IIF(IN_ORDER = 1 OR PASSED_OVER > 100, 'L', 'N');
                    CONTINUE;
                END
                TASK_QUEUE = NULL;
                SELECT T.QUEUE, T.TRAITS, T.SUSPECT, T.EXPIRE_TIME FROM QUEUE_TASK T
                    WHERE T.ID = :TASK_ID AND T.STATE = 4
                    FOR UPDATE WITH LOCK SKIP LOCKED INTO :TASK_QUEUE, :TRAITS, :SUSPECT, :EXPIRE_TIME;
                IF (TASK_QUEUE IS NULL AND EXISTS(SELECT 1 FROM QUEUE_TASK T
                    WHERE T.ID = :TASK_ID AND T.STATE = 4)) THEN
                BEGIN
                    SKIPPED = 1;
                    VERDICT = IIF(IN_ORDER = 1, 'L', 'N');
                    CONTINUE;
                END
                DELETE FROM QUEUE_TICKET K WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE
                    AND K.PRIORITY_RANK = :AT_RANK
                    AND K.TASK_ID = :TASK_ID;
                IF (SKIPPED = 0) THEN
                BEGIN
                    MARK_RANK = AT_RANK;
                    MARK_ID = TASK_ID;
                END
                IF (TASK_QUEUE IS NULL) THEN
                    CONTINUE;
                IF (EXPIRE_TIME <= NOW_UTC) THEN
                BEGIN
                    EXECUTE PROCEDURE FBTASKS_CORE.ARCHIVE(TASK_ID, 12, NULL, 0, NULL, 'expired before it began', NULL,
                        NULL, NULL);
                    CONTINUE;
                END
                USED = USED + 1;
                FREE_US = IIF(PERIOD_US > 0, TOKEN_US + PERIOD_US, FREE_US);
                EXECUTE PROCEDURE PASS_GATE(TASK_ID, LIMIT_ID, LANE, TRAITS, TASK_QUEUE, SUSPECT, QUEUE)
                    RETURNING_VALUES IS_CLAIMED;
                IF (IS_CLAIMED = 1) THEN
                BEGIN
                    IDS = IDS || LPAD(TASK_ID, 19, '0');
                    ROOM_LEFT = ROOM_LEFT - 1;
                END
            END
        END
        UPDATE QUEUE_GATE G SET USED = :USED, FREE_US = :FREE_US, MARK_RANK = :MARK_RANK, MARK_ID = :MARK_ID,
            WAITS = IIF(:VERDICT = 'E', 0, 1), WAKE_TIME = CASE
                WHEN :VERDICT = 'E' THEN NULL
                WHEN :VERDICT = 'R' THEN DATEADD(1 MILLISECOND TO :NOW_UTC)
                WHEN :VERDICT = 'L' THEN DATEADD(1 SECOND TO :NOW_UTC)
                WHEN :VERDICT = 'S' AND :USED >= :AT_ONCE THEN NULL
                ELSE DATEADD(:TOKEN_US / 1000 + 1 MILLISECOND TO TIMESTAMP '1970-01-01') END
            WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
    END
    UPDATE QUEUE_DISPATCH D SET MARK_ID = :NOTE_ID, WAKE_MARK = :WAKE_MARK WHERE D.SUBSCRIPTION_ID = :LIMIT_ID;
END^

-- Whether there may be something for QUEUE to let in by a limit now, and else in how many milliseconds (NULL: when
-- something happens). With FROM_START, also notes that were committed late are seen; notes that were read may still
-- be there, as versions that an old transaction keeps.
PROCEDURE LIMIT_READY (LIMIT_ID INTEGER, QUEUE QUEUE_NAME, FROM_START SMALLINT)
RETURNS (READY SMALLINT, NEXT_MS BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE WAKE_TIME TIMESTAMP;
    DECLARE NOTE_ID BIGINT;
    DECLARE WAKE_MARK TIMESTAMP;
    DECLARE PAUSED SMALLINT;
    DECLARE BATCH INTEGER;
BEGIN
    SELECT IIF(:FROM_START = 1, 0, D.MARK_ID), D.WAKE_MARK FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = :LIMIT_ID
        INTO :NOTE_ID, :WAKE_MARK;
    READY = IIF(EXISTS(SELECT 1 FROM QUEUE_NOTE N WHERE N.OWNER_ID = :LIMIT_ID AND N.ID > :NOTE_ID
        ORDER BY N.OWNER_ID, N.ID), 1, 0);
    IF (READY = 0) THEN
        SELECT L.PAUSED, L.BATCH FROM QUEUE_LIMIT L WHERE L.ID = :LIMIT_ID INTO :PAUSED, :BATCH;
    IF (PAUSED = 0) THEN
    BEGIN
        NOW_UTC = QUEUE_NOW();
        IF (BATCH IS NOT NULL) THEN
            SELECT MIN(G.WAKE_TIME) FROM QUEUE_GATE G LEFT JOIN QUEUE_TASK T ON T.ID = G.HOLDER_ID
                WHERE G.OWNER_ID = :LIMIT_ID AND G.WAITS = 1 AND COALESCE(T.QUEUE, :QUEUE) = :QUEUE INTO :WAKE_TIME;
        ELSE
            SELECT FIRST 1 G.WAKE_TIME FROM QUEUE_GATE G WHERE G.OWNER_ID = :LIMIT_ID AND G.WAKE_TIME >= :WAKE_MARK
                ORDER BY G.OWNER_ID, G.WAKE_TIME INTO :WAKE_TIME;
        IF (WAKE_TIME <= NOW_UTC) THEN
            READY = 1;
        ELSE
            NEXT_MS = CEIL(DATEDIFF(MILLISECOND FROM NOW_UTC TO WAKE_TIME));
    END
END^

-- Lets in what QUEUE is to claim now of what waits for limits: the ids of up to ROOM tasks, of 19 digits each, in
-- IDS; a batch takes one of ROOM, whatever its size, and ADMITTED is how much was taken. Tasks that are ready already
-- have the room that is theirs by rank; of their own rank, they share it.
PROCEDURE ADMIT (QUEUE QUEUE_NAME, ROOM INTEGER, FROM_START SMALLINT)
RETURNS (IDS VARCHAR(32000) CHARACTER SET ASCII, ADMITTED INTEGER, MISSED SMALLINT)
AS
    DECLARE LIMIT_ID INTEGER;
    DECLARE FOUND VARCHAR(10000) CHARACTER SET ASCII = '';
    DECLARE LIMITS INTEGER = 0;
    DECLARE STAGE SMALLINT;
    DECLARE SHARERS INTEGER = 0;
    DECLARE READY_RANK SMALLINT;
    DECLARE SUSPECT SMALLINT;
    DECLARE READY INTEGER;
    DECLARE HALF INTEGER;
    DECLARE ROOM_LEFT INTEGER;
    DECLARE ROOM_AFTER INTEGER;
    DECLARE SHARE INTEGER;
    DECLARE SOME_IDS VARCHAR(32000) CHARACTER SET ASCII;
    DECLARE MISSED_ONE SMALLINT;
    DECLARE IS_READY SMALLINT;
    DECLARE NEXT_MS BIGINT;
BEGIN
    IDS = '';
    ADMITTED = 0;
    MISSED = 0;
    ROOM = MINVALUE(ROOM, 1000);
    FOR SELECT DISTINCT L.STAGE, U.LIMIT_ID FROM QUEUE_LIMIT_USE U JOIN QUEUE_LIMIT L ON L.ID = U.LIMIT_ID
        WHERE U.QUEUE = :QUEUE
        ORDER BY 1, 2 INTO :STAGE, :LIMIT_ID DO
        IF (LIMITS < 900) THEN
        BEGIN
            EXECUTE PROCEDURE LIMIT_READY(LIMIT_ID, QUEUE, FROM_START) RETURNING_VALUES IS_READY, NEXT_MS;
            FOUND = FOUND || LPAD(LIMIT_ID, 11);
            LIMITS = LIMITS + 1;
            SHARERS = SHARERS + IS_READY;
        END
    IF (SHARERS = 0) THEN
        EXIT;
    SELECT FIRST 1 T.PRIORITY_RANK, T.SUSPECT FROM QUEUE_TASK T WHERE T.STATE = 0 AND T.QUEUE = :QUEUE
        ORDER BY T.STATE, T.QUEUE, T.PRIORITY_RANK, T.START_TIME, T.ID INTO :READY_RANK, :SUSPECT;
    HALF = ROOM / 2 + IIF(MOD(ROOM, 2) = 1 AND RAND() < 0.5, 1, 0);  -- of a room for one, every second time
    IF (SUSPECT > 0 AND RAND() < 0.5) THEN  -- which is claimed alone
        EXIT;
    SELECT COUNT(*) FROM (SELECT FIRST (:ROOM) 1 AS ONE FROM QUEUE_TASK T WHERE T.STATE = 0 AND T.QUEUE = :QUEUE)
        INTO :READY;
    IF (EXISTS(SELECT 1 FROM QUEUE_POLICY P WHERE P.QUEUE = :QUEUE AND P.AGE_MS > 0)) THEN
        -- with ageing no task is more urgent for good: they share it, whatever their ranks
        READY = MINVALUE(READY, HALF);
    READY_RANK = COALESCE(READY_RANK, 9999);
    ROOM_LEFT = ROOM;
    WHILE (LIMITS > 0 AND ROOM_LEFT > 0) DO
    BEGIN
        -- In the order in which tasks pass them.
        LIMIT_ID = CAST(SUBSTRING(FOUND FROM CHAR_LENGTH(FOUND) - 11 * LIMITS + 1 FOR 11) AS INTEGER);
        LIMITS = LIMITS - 1;
        EXECUTE PROCEDURE LIMIT_READY(LIMIT_ID, QUEUE, FROM_START) RETURNING_VALUES IS_READY, NEXT_MS;
        IF (IS_READY = 0) THEN
            CONTINUE;
        SHARERS = MAXVALUE(SHARERS, 1);
        SHARE = (ROOM_LEFT + SHARERS - 1) / SHARERS;
        EXECUTE PROCEDURE ADMIT_ONE(LIMIT_ID, QUEUE, FROM_START, SHARE, READY_RANK,
            MAXVALUE(0, SHARE - ROOM_LEFT + MINVALUE(READY, HALF)), MAXVALUE(0, SHARE - ROOM_LEFT + READY))
            RETURNING_VALUES SOME_IDS, ROOM_AFTER, MISSED_ONE;
        IDS = IDS || SOME_IDS;
        ROOM_LEFT = ROOM_LEFT - SHARE + ROOM_AFTER;
        ADMITTED = ROOM - ROOM_LEFT;
        MISSED = MAXVALUE(MISSED, MISSED_ONE);
        SHARERS = SHARERS - 1;
        IF (CHAR_LENGTH(IDS) > 19 * 600) THEN  -- batches: there may not be place for another 1000
        BEGIN
            MISSED = 1;
            LEAVE;
        END
    END
END^

-- The limit of a queue is taken by the claim itself: its tasks wait as they do without one, and those that are
-- claimed are counted at one gate, of lane 0, whose row stays.

-- How many tasks the limit of a queue lets a claim of up to MOST take now: ROOM. Who gets its row of QUEUE_DISPATCH
-- locked is told, and has it locked from here on; with MISSED 1 another one has. FREE_US is the moment of the next
-- token.
PROCEDURE ROOM (LIMIT_ID INTEGER, FROM_START SMALLINT, MOST INTEGER)
RETURNS (ROOM INTEGER, MISSED SMALLINT, PERIOD_US BIGINT, FREE_US BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE NOW_US BIGINT;
    DECLARE NOTE_ID BIGINT;
    DECLARE LAST_ID BIGINT;
    DECLARE AT_ONCE INTEGER;
    DECLARE BURST INTEGER;
    DECLARE PAUSED SMALLINT;
    DECLARE USED INTEGER;
BEGIN
    ROOM = 0;
    MISSED = 0;
    SELECT D.MARK_ID FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = :LIMIT_ID FOR UPDATE WITH LOCK SKIP LOCKED
        INTO :NOTE_ID;
    IF (NOTE_ID IS NULL) THEN
    BEGIN
        MISSED = 1;
        EXIT;
    END
    -- The server's clock of this moment: this statement may have begun before the one that had the lock.
    NOW_UTC = QUEUE_UTC(CAST('NOW' AS TIMESTAMP WITH TIME ZONE));
    NOW_US = 1000 * CAST(DATEDIFF(MILLISECOND FROM TIMESTAMP '1970-01-01' TO NOW_UTC) AS BIGINT);
    LAST_ID = IIF(FROM_START = 1, 0, NOTE_ID);
    IF (EXISTS(SELECT 1 FROM QUEUE_NOTE N WHERE N.OWNER_ID = :LIMIT_ID AND N.ID > :LAST_ID
        ORDER BY N.OWNER_ID, N.ID)) THEN
    BEGIN
        EXECUTE PROCEDURE FOLD_NOTES(LIMIT_ID, 0, 0, LAST_ID, 1000, NOW_UTC) RETURNING_VALUES LAST_ID, MISSED;
        UPDATE QUEUE_DISPATCH D SET MARK_ID = MAXVALUE(:NOTE_ID, :LAST_ID) WHERE D.SUBSCRIPTION_ID = :LIMIT_ID;
    END
    SELECT COALESCE(L.SET_AT_ONCE, L.AT_ONCE, 2147483647), COALESCE(L.SET_PERIOD_US, L.PERIOD_US, 0),
        COALESCE(L.SET_BURST, L.BURST, 1), L.PAUSED
        FROM QUEUE_LIMIT L WHERE L.ID = :LIMIT_ID INTO :AT_ONCE, :PERIOD_US, :BURST, :PAUSED;
    SELECT G.USED, G.FREE_US FROM QUEUE_GATE G WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = 0 INTO :USED, :FREE_US;
    IF (PERIOD_US > 0 AND FREE_US > NOW_US + PERIOD_US) THEN
    BEGIN
        FREE_US = NOW_US + PERIOD_US;  -- the rate was lower when the last one was let in
        UPDATE QUEUE_GATE G SET FREE_US = :FREE_US WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = 0;
    END
    FREE_US = MAXVALUE(COALESCE(FREE_US, 0), NOW_US - (BURST - 1) * PERIOD_US);
    ROOM = MINVALUE(MOST, MAXVALUE(0, AT_ONCE - COALESCE(USED, 0)));
    IF (PERIOD_US > 0) THEN
        ROOM = MINVALUE(ROOM, IIF(FREE_US > NOW_US, 0, (NOW_US - FREE_US) / PERIOD_US + 1));
    IF (PAUSED = 1) THEN
        ROOM = 0;
    -- Whether more is ready than there is room for, so that the end of a task wakes workers, is told by the claim
    -- (TAKE_ROOM).
    IF (ROOM = 0) THEN
        UPDATE QUEUE_GATE G SET WAITS = 1 WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = 0 AND G.WAITS = 0;
END^

-- Notes that a claim has taken TAKEN of the room that ROOM told it; WAITS is 1 when it could have taken more.
PROCEDURE TAKE_ROOM (LIMIT_ID INTEGER, TAKEN INTEGER, WAITS SMALLINT, PERIOD_US BIGINT, FREE_US BIGINT)
AS
BEGIN
    UPDATE QUEUE_GATE G SET USED = USED + :TAKEN, WAITS = :WAITS, FREE_US = :FREE_US + :TAKEN * :PERIOD_US
        WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = 0 AND (:TAKEN > 0 OR G.WAITS <> :WAITS);
    IF (ROW_COUNT = 0 AND TAKEN > 0) THEN
        INSERT INTO QUEUE_GATE (OWNER_ID, LANE, USED, WAITS, FREE_US)
            VALUES (:LIMIT_ID, 0, :TAKEN, :WAITS, :FREE_US + :TAKEN * :PERIOD_US);
END^

-- Whether the limit of a queue may have room now, and else in how many milliseconds (NULL: when a task ends).
PROCEDURE HAS_ROOM (LIMIT_ID INTEGER)
RETURNS (HAS_ROOM SMALLINT, NEXT_MS BIGINT)
AS
    DECLARE NOW_US BIGINT;
    DECLARE USED INTEGER = 0;
    DECLARE FREE_US BIGINT = 0;
    DECLARE AT_ONCE INTEGER;
    DECLARE PERIOD_US BIGINT;
    DECLARE BURST INTEGER;
    DECLARE PAUSED SMALLINT;
BEGIN
    SELECT G.USED, G.FREE_US FROM QUEUE_GATE G WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = 0 INTO :USED, :FREE_US;
    SELECT COALESCE(L.SET_AT_ONCE, L.AT_ONCE, 2147483647), COALESCE(L.SET_PERIOD_US, L.PERIOD_US, 0),
        COALESCE(L.SET_BURST, L.BURST, 1), L.PAUSED
        FROM QUEUE_LIMIT L WHERE L.ID = :LIMIT_ID INTO :AT_ONCE, :PERIOD_US, :BURST, :PAUSED;
    HAS_ROOM = IIF(PAUSED = 0 AND (USED < AT_ONCE OR EXISTS(SELECT 1 FROM QUEUE_NOTE N WHERE N.OWNER_ID = :LIMIT_ID
        ORDER BY N.OWNER_ID, N.ID)), 1, 0);
    NOW_US = 1000 * CAST(DATEDIFF(MILLISECOND FROM TIMESTAMP '1970-01-01' TO QUEUE_NOW()) AS BIGINT);
    IF (HAS_ROOM = 1 AND PERIOD_US > 0 AND FREE_US > NOW_US) THEN
    BEGIN
        HAS_ROOM = 0;
        NEXT_MS = MINVALUE(FREE_US - NOW_US, PERIOD_US) / 1000 + 1;
    END
END^

-- Notes what an app says of a limit. DONE is 0 when that is known already, 2 when it is not taken over: with ONLY_NEW
-- another definition stays. What operators have set stays, unless it is of the other kind now. A limit that was a
-- rate once keeps the last stage: tasks that wait have the order of their limits from then, and in two orders they
-- could wait for each other.
PROCEDURE SET_LIMIT (
    NAME VARCHAR(300) CHARACTER SET UTF8 COLLATE UTF8, APP QUEUE_TEXT, AT_ONCE INTEGER, PERIOD_US BIGINT, BURST INTEGER,
    IN_ORDER SMALLINT, STOPS SMALLINT, UNIQUE_UNTIL VARCHAR(5) CHARACTER SET ASCII, REPLACES SMALLINT, QUIET_MS BIGINT,
    MOST_MS BIGINT, LASTS_MS BIGINT, BATCH INTEGER, WAIT_MS BIGINT, DEFINITION QUEUE_LONG_TEXT, HASH QUEUE_HASH,
    ONLY_NEW SMALLINT)
RETURNS (DONE SMALLINT)
AS
    DECLARE ID INTEGER;
    DECLARE KNOWN_HASH QUEUE_HASH;
    DECLARE STATE VARCHAR(8) CHARACTER SET ASCII;
    DECLARE NAME_HASH BINARY(32);
    DECLARE STAGE SMALLINT;
    DECLARE IS_OF_QUEUE SMALLINT;
BEGIN
    NAME_HASH = CRYPT_HASH(NAME USING SHA256);
    IS_OF_QUEUE = IIF(NAME STARTING WITH 'queue:', 1, 0);  -- which may have both kinds
    STAGE = CASE WHEN UNIQUE_UNTIL IS NOT NULL THEN -1 WHEN IN_ORDER = 1 THEN 0 WHEN PERIOD_US IS NULL
        AND BATCH IS NULL THEN 1 ELSE 2 END;
    SELECT L.ID, L.HASH, L.STATE FROM QUEUE_LIMIT L WHERE L.NAME_HASH = :NAME_HASH INTO :ID, :KNOWN_HASH, :STATE;
    DONE = CASE WHEN KNOWN_HASH = HASH AND STATE = 'active' THEN 0 WHEN ID IS NOT NULL AND ONLY_NEW = 1 THEN 2
        ELSE 1 END;
    IF (DONE = 1 AND ID IS NULL) THEN
    BEGIN
        ID = NEXT VALUE FOR QUEUE_SUBSCRIPTION_SEQ;
        INSERT INTO QUEUE_LIMIT (ID, NAME, NAME_HASH, STAGE, APP, AT_ONCE, PERIOD_US, BURST, IN_ORDER, STOPS,
                UNIQUE_UNTIL, REPLACES, QUIET_MS, MOST_MS, LASTS_MS, BATCH, WAIT_MS, STATE, DEFINITION, HASH)
            VALUES (:ID, :NAME, :NAME_HASH, :STAGE, :APP, :AT_ONCE, :PERIOD_US, :BURST, :IN_ORDER, :STOPS,
                :UNIQUE_UNTIL, :REPLACES, :QUIET_MS, :MOST_MS, :LASTS_MS, :BATCH, :WAIT_MS, 'active', :DEFINITION,
                    :HASH);
        INSERT INTO QUEUE_DISPATCH (SUBSCRIPTION_ID, WAKE_MARK) VALUES (:ID, TIMESTAMP '0001-01-01');
    END
    ELSE IF (DONE = 1) THEN
    BEGIN
        UPDATE QUEUE_LIMIT L SET APP = :APP, STAGE = IIF(L.STAGE = 2, 2, :STAGE),
            SET_AT_ONCE = IIF(:AT_ONCE IS NULL AND :IS_OF_QUEUE = 0, NULL, L.SET_AT_ONCE),
            SET_PERIOD_US = IIF(:PERIOD_US IS NULL AND :IS_OF_QUEUE = 0, NULL, L.SET_PERIOD_US),
            SET_BURST = IIF(:PERIOD_US IS NULL AND :IS_OF_QUEUE = 0, NULL, L.SET_BURST), AT_ONCE = :AT_ONCE,
            PERIOD_US = :PERIOD_US, BURST = :BURST, IN_ORDER = :IN_ORDER, STOPS = :STOPS, UNIQUE_UNTIL = :UNIQUE_UNTIL,
                REPLACES = :REPLACES, QUIET_MS = :QUIET_MS, MOST_MS = :MOST_MS,
            LASTS_MS = :LASTS_MS, BATCH = :BATCH, WAIT_MS = :WAIT_MS, STATE = 'active', DEFINITION = :DEFINITION,
                HASH = :HASH WHERE L.ID = :ID;
        EXECUTE PROCEDURE LIMIT_CHANGED(ID);
    END
    SUSPEND;
END^

-- Notes that the code of its app has a limit no more. It stays: tasks that were enqueued before it, and programs that
-- are older, go by it.
PROCEDURE ORPHAN_LIMIT (LIMIT_ID INTEGER)
AS
BEGIN
    UPDATE QUEUE_LIMIT L SET STATE = 'orphaned' WHERE L.ID = :LIMIT_ID;
END^

-- Deletes up to MOST gates of limits at which no task is, none waits, and of which nothing is to be remembered; and
-- tickets of tasks that are gone. What this statement sees of a limit is all there is when it gets the lock under
-- which those are written.
PROCEDURE FORGET_GATES (MOST INTEGER)
RETURNS (FORGOTTEN INTEGER)
AS
    DECLARE NOW_US BIGINT;
    DECLARE LIMIT_ID INTEGER;
    DECLARE LAST_ID INTEGER;
    DECLARE LANE BIGINT;
    DECLARE TASK_ID BIGINT;
    DECLARE KNOWN SMALLINT;
    DECLARE LOCKED SMALLINT = 0;
BEGIN
    FORGOTTEN = 0;
    NOW_US = 1000 * CAST(DATEDIFF(MILLISECOND FROM TIMESTAMP '1970-01-01'
        TO QUEUE_NOW()) AS BIGINT);
    FOR SELECT G.OWNER_ID, G.LANE, NULL, 1 FROM QUEUE_GATE G JOIN QUEUE_LIMIT L ON L.ID = G.OWNER_ID
            WHERE G.USED = 0 AND G.WAITS = 0 AND G.HALTED = 0
                AND COALESCE(G.FREE_US, 0) + (COALESCE(L.SET_BURST, L.BURST, 1) - 1) * COALESCE(L.SET_PERIOD_US,
                    L.PERIOD_US, 0) <= :NOW_US
                AND NOT EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = G.HOLDER_ID)
        UNION ALL
        SELECT K.OWNER_ID, K.LANE, K.TASK_ID, SIGN(L.ID)
            FROM QUEUE_TICKET K LEFT JOIN QUEUE_LIMIT L ON L.ID = K.OWNER_ID
            WHERE NOT EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = K.TASK_ID)
                AND NOT EXISTS(SELECT 1 FROM QUEUE_SUBSCRIPTION S WHERE S.ID = K.OWNER_ID)
        INTO :LIMIT_ID, :LANE, :TASK_ID, :KNOWN DO
    BEGIN
        IF (LIMIT_ID IS DISTINCT FROM LAST_ID) THEN
        BEGIN
            LAST_ID = LIMIT_ID;
            LOCKED = IIF(KNOWN IS NULL, 1, 0);  -- nobody lets anything in by a limit that is gone
            SELECT 1 FROM QUEUE_DISPATCH D WHERE D.SUBSCRIPTION_ID = :LIMIT_ID FOR UPDATE WITH LOCK SKIP LOCKED
                INTO :LOCKED;
        END
        IF (LOCKED = 0) THEN
            CONTINUE;
        IF (TASK_ID IS NULL) THEN
            DELETE FROM QUEUE_GATE G WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
        ELSE
            DELETE FROM QUEUE_TICKET K WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.TASK_ID = :TASK_ID;
        FORGOTTEN = FORGOTTEN + 1;
        IF (FORGOTTEN >= MOST) THEN
            LEAVE;
    END
    SUSPEND;
END^

-- Of the next MOST tasks behind AFTER_ID that were merged into others, or have the gates of their limits beside them,
-- forgets those of which neither they nor what answers for them is there any more. LAST_ID is NULL when it has looked
-- at the last one.
PROCEDURE FORGET_TRACES (AFTER_ID BIGINT, MOST INTEGER)
RETURNS (FORGOTTEN INTEGER, LAST_ID BIGINT)
AS
    DECLARE ID BIGINT;
    DECLARE TO_ID BIGINT;
    DECLARE SEEN INTEGER = 0;
    DECLARE FREE_ID BIGINT;
BEGIN
    FORGOTTEN = 0;
    FOR SELECT FIRST (:MOST) X.ID, X.TO_ID FROM (
            SELECT * FROM (SELECT FIRST (:MOST) R.ID, R.TO_ID FROM QUEUE_REDIRECT R WHERE R.ID > :AFTER_ID
                ORDER BY R.ID)
            UNION ALL
            SELECT * FROM (SELECT FIRST (:MOST) P.TASK_ID, P.TASK_ID AS TO_ID FROM QUEUE_PATH P
                WHERE P.TASK_ID > :AFTER_ID AND P.STEP = 0
                ORDER BY P.TASK_ID, P.STEP)) X (ID, TO_ID)
        ORDER BY X.ID INTO :ID, :TO_ID DO
    BEGIN
        SEEN = SEEN + 1;
        LAST_ID = ID;
        IF (NOT EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :TO_ID)
            AND NOT EXISTS(SELECT 1 FROM QUEUE_HISTORY H WHERE H.ID = :TO_ID)) THEN
        BEGIN
            FREE_ID = NULL;
            IF (TO_ID = ID) THEN
                SELECT P.TASK_ID FROM QUEUE_PATH P WHERE P.TASK_ID = :ID AND P.STEP = 0
                    FOR UPDATE WITH LOCK SKIP LOCKED INTO :FREE_ID;
            ELSE
                SELECT R.ID FROM QUEUE_REDIRECT R WHERE R.ID = :ID FOR UPDATE WITH LOCK SKIP LOCKED INTO :FREE_ID;
            IF (FREE_ID IS NULL) THEN  -- another worker is at it
                CONTINUE;
            IF (TO_ID = ID) THEN
                DELETE FROM QUEUE_PATH P WHERE P.TASK_ID = :ID;
            ELSE
            BEGIN
                DELETE FROM QUEUE_REDIRECT R WHERE R.ID = :ID;
                DELETE FROM QUEUE_TASK_ID N WHERE N.ID = :ID;
            END
            FORGOTTEN = FORGOTTEN + 1;
        END
    END
    LAST_ID = IIF(SEEN < MOST, NULL, LAST_ID);
    SUSPEND;
END^

PACKAGE FBTASKS_LIMITS_API^

-- What a producer has to know of a limit. No row: no app has said anything of it.
PROCEDURE FIND_LIMIT (NAME VARCHAR(300) CHARACTER SET UTF8 COLLATE UTF8)
RETURNS (ID INTEGER, STAGE SMALLINT, HASH QUEUE_HASH)
AS
BEGIN
    FOR SELECT L.ID, L.STAGE, L.HASH FROM QUEUE_LIMIT L WHERE L.NAME_HASH = CRYPT_HASH(:NAME USING SHA256)
            INTO :ID, :STAGE, :HASH DO
        SUSPEND;
END^

-- Notes that tasks of QUEUE pass a limit, in a transaction of its own: nobody waits for the end of the caller's. DONE
-- is 0 when that is known.
PROCEDURE USE_LIMIT (LIMIT_ID INTEGER, QUEUE QUEUE_NAME)
RETURNS (DONE SMALLINT)
AS
BEGIN
    DONE = 0;
    IF (NOT EXISTS(SELECT 1 FROM QUEUE_LIMIT_USE U WHERE U.QUEUE = :QUEUE AND U.LIMIT_ID = :LIMIT_ID)) THEN
    BEGIN
        IN AUTONOMOUS TRANSACTION DO
            INSERT INTO QUEUE_LIMIT_USE (QUEUE, LIMIT_ID) VALUES (:QUEUE, :LIMIT_ID);
        DONE = 1;
    END
    IF (NOT EXISTS(SELECT 1 FROM QUEUE_POLICY P WHERE P.QUEUE = :QUEUE AND P.GATED = 1)) THEN
    BEGIN
        IN AUTONOMOUS TRANSACTION DO
            UPDATE OR INSERT INTO QUEUE_POLICY (QUEUE, GATED) VALUES (:QUEUE, 1) MATCHING (QUEUE);
        DONE = 1;
    END
    SUSPEND;
END^

PACKAGE FBTASKS_LIMITS_ADMIN^

-- Has a limit go by what an operator says instead of the code; NULL: by the code.
PROCEDURE OVERRIDE_LIMIT (LIMIT_ID INTEGER, AT_ONCE INTEGER, PERIOD_US BIGINT, BURST INTEGER)
AS
BEGIN
    UPDATE QUEUE_LIMIT L SET SET_AT_ONCE = :AT_ONCE, SET_PERIOD_US = :PERIOD_US, SET_BURST = :BURST
        WHERE L.ID = :LIMIT_ID;
    EXECUTE PROCEDURE FBTASKS_LIMITS.LIMIT_CHANGED(LIMIT_ID);
END^

-- Opens a gate that is halted since TASK_ID has failed. That task stays failed.
PROCEDURE RESUME_GATE (LIMIT_ID INTEGER, LANE BIGINT, TASK_ID BIGINT)
AS
BEGIN
    INSERT INTO QUEUE_NOTE (OWNER_ID, ID, KIND, LANE, TASK_ID)
        VALUES (:LIMIT_ID, NEXT VALUE FOR QUEUE_NOTE_SEQ, 'D', :LANE, :TASK_ID);
    EXECUTE PROCEDURE FBTASKS_LIMITS.WAKE_LIMIT(LIMIT_ID);
END^

SET TERM ; ^
