-- Limits: how many tasks run at once, how often they begin, and in which order, for each key. A task that a limit concerns waits
-- in state 4 before its gate, with a ticket, and is let in by a claim, which takes it at once. A limit is the owner of its gates, as
-- a subscription is of its lanes (0036_sources.sql), and keeps to the same rule: who has its row of QUEUE_DISPATCH locked
-- writes its gates and tickets; all others leave a note.
SET TERM ^ ;

CREATE TABLE QUEUE_LIMIT (
    ID INTEGER NOT NULL PRIMARY KEY,  -- of QUEUE_SUBSCRIPTION_SEQ: no subscription has it
    NAME VARCHAR(255) CHARACTER SET UTF8 NOT NULL,
    -- Which app has defined it last.
    APP VARCHAR(255) CHARACTER SET UTF8 NOT NULL,
    -- Tasks that are in at once for each key; NULL: any number.
    AT_ONCE INTEGER CHECK (AT_ONCE > 0),
    -- Microseconds between two that begin, and how many may begin at once after a pause; NULL: as they come.
    PERIOD_US BIGINT CHECK (PERIOD_US > 0),
    BURST INTEGER CHECK (BURST > 0),
    -- 1 when tasks are let in as they were enqueued, whatever their priority, and none overtakes one that is locked.
    IN_ORDER QUEUE_FLAG,
    -- 1 when a gate stays shut after a task that failed, until that is retried or discarded.
    STOPS QUEUE_FLAG,
    -- 1 when nothing is let in.
    PAUSED QUEUE_FLAG,
    -- What operators have set in the place of what the code says.
    SET_AT_ONCE INTEGER CHECK (SET_AT_ONCE > 0),
    SET_PERIOD_US BIGINT CHECK (SET_PERIOD_US > 0),
    SET_BURST INTEGER CHECK (SET_BURST > 0),
    -- 'active'; 'orphaned': the code has it no more.
    STATE VARCHAR(8) CHARACTER SET ASCII NOT NULL CHECK (STATE IN ('active', 'orphaned')),
    DEFINITION BLOB SUB_TYPE TEXT CHARACTER SET UTF8 NOT NULL,
    HASH CHAR(64) CHARACTER SET ASCII NOT NULL,
    CONSTRAINT QUEUE_LIMIT_NAME UNIQUE (NAME)
)^

-- Reads the notes of a limit: who ended or gave back its place, who waits. Each changes its gate and says that it is to be
-- looked at. Called by QUEUE_ADMIT_ONE_V1, under its lock. MORE is 1 when it stopped at MOST.
CREATE OR ALTER PROCEDURE QUEUE_FOLD_NOTES_V1 (LIMIT_ID INTEGER, IN_ORDER SMALLINT, STOPS SMALLINT, AFTER_ID BIGINT, MOST INTEGER, NOW_UTC TIMESTAMP)
RETURNS (LAST_ID BIGINT, MORE SMALLINT)
SQL SECURITY DEFINER
AS
    DECLARE ID BIGINT;
    DECLARE KIND CHAR(1) CHARACTER SET ASCII;
    DECLARE LANE BIGINT;
    DECLARE TASK_ID BIGINT;
    DECLARE RANK SMALLINT;
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
            SELECT IIF(:IN_ORDER = 1, 0, T.PRIORITY_RANK) FROM QUEUE_TASK T WHERE T.ID = :TASK_ID AND T.STATE = 4 INTO :RANK;
            IF (RANK IS NULL) THEN  -- it has ended
                CONTINUE;
            INSERT INTO QUEUE_TICKET (OWNER_ID, LANE, PRIORITY_RANK, TASK_ID) VALUES (:LIMIT_ID, :LANE, :RANK, :TASK_ID);
            UPDATE QUEUE_GATE G SET WAITS = 1, WAKE_TIME = COALESCE(WAKE_TIME, IIF(G.HALTED = 1, NULL, :NOW_UTC)),
                MARK_RANK = IIF(:RANK < G.MARK_RANK OR (:RANK = G.MARK_RANK AND :TASK_ID <= G.MARK_ID), NULL, G.MARK_RANK)
                WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
            IF (ROW_COUNT = 0) THEN
                INSERT INTO QUEUE_GATE (OWNER_ID, LANE, WAITS, WAKE_TIME) VALUES (:LIMIT_ID, :LANE, 1, :NOW_UTC);
        END
        ELSE IF (KIND = 'G') THEN
            DELETE FROM QUEUE_TICKET K WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.TASK_ID = :TASK_ID;
        ELSE IF (KIND = 'S' AND STOPS = 1) THEN
            UPDATE QUEUE_GATE G SET USED = MAXVALUE(USED - 1, 0), HALTED = 1, HOLDER_ID = :TASK_ID, WAKE_TIME = NULL
                WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
        ELSE IF (KIND = 'D') THEN
            UPDATE QUEUE_GATE G SET HALTED = 0, HOLDER_ID = NULL, WAKE_TIME = :NOW_UTC
                WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE AND G.HALTED = 1 AND G.HOLDER_ID = :TASK_ID;
        ELSE  -- 'F', 'S', 'B'
        BEGIN
            DELETE FROM QUEUE_GATE G WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE AND G.USED <= 1 AND G.WAITS = 0
                AND G.HALTED = 0 AND G.FREE_US IS NULL;
            IF (ROW_COUNT = 0) THEN
                UPDATE QUEUE_GATE G SET USED = MAXVALUE(USED - 1, 0),
                    WAKE_TIME = IIF(G.WAITS = 1 AND G.HALTED = 0, COALESCE(WAKE_TIME, :NOW_UTC), NULL)
                    WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
        END
    END
END^

-- Lets in tasks of one limit that QUEUE is to claim now: their ids, of 19 digits, in IDS. Up to ROOM; of the rank READY_RANK, which
-- is that of the first ready task, only while more than LESS_SAME of the room is left, and of higher ranks while more than LESS_HIGHER is: that
-- room is for what is ready. A task of another queue becomes ready there. Who has the limit's row of QUEUE_DISPATCH locked does this,
-- and sees all that was done under that lock before; MISSED is 1 when another one has it, or when there is more to look at.
CREATE OR ALTER PROCEDURE QUEUE_ADMIT_ONE_V1 (
    LIMIT_ID INTEGER, QUEUE VARCHAR(63) CHARACTER SET ASCII, FROM_START SMALLINT, ROOM INTEGER, READY_RANK SMALLINT,
    LESS_SAME INTEGER, LESS_HIGHER INTEGER)
RETURNS (IDS VARCHAR(20000) CHARACTER SET ASCII, ROOM_LEFT INTEGER, MISSED SMALLINT)
SQL SECURITY DEFINER
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
    DECLARE TASK_QUEUE VARCHAR(63) CHARACTER SET ASCII;
    DECLARE TRAITS SMALLINT;
    DECLARE SUSPECT SMALLINT;
    DECLARE EXPIRE_TIME TIMESTAMP;
    DECLARE NEXT_OWNER INTEGER;
    DECLARE NEXT_LANE BIGINT;
    DECLARE WAKE_MARK TIMESTAMP;
    DECLARE AT_RANK SMALLINT;
    DECLARE AT_ID BIGINT;
    DECLARE SKIPPED SMALLINT;
    DECLARE VERDICT CHAR(1) CHARACTER SET ASCII;
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
    NOW_UTC = MAXVALUE(CAST(CURRENT_TIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP), WAKE_MARK);
    NOW_US = 1000 * CAST(DATEDIFF(MILLISECOND FROM TIMESTAMP '1970-01-01' TO NOW_UTC) AS BIGINT);
    SELECT COALESCE(L.SET_AT_ONCE, L.AT_ONCE, 2147483647), COALESCE(L.SET_PERIOD_US, L.PERIOD_US, 0), COALESCE(L.SET_BURST, L.BURST, 1),
            L.IN_ORDER, L.STOPS, L.PAUSED
        FROM QUEUE_LIMIT L WHERE L.ID = :LIMIT_ID INTO :AT_ONCE, :PERIOD_US, :BURST, :IN_ORDER, :STOPS, :PAUSED;
    IF (EXISTS(SELECT 1 FROM QUEUE_NOTE N WHERE N.OWNER_ID = :LIMIT_ID AND N.ID > IIF(:FROM_START = 1, 0, :NOTE_ID))) THEN
        EXECUTE PROCEDURE QUEUE_FOLD_NOTES_V1(LIMIT_ID, IN_ORDER, STOPS, IIF(FROM_START = 1, 0, NOTE_ID), 500, NOW_UTC)
            RETURNING_VALUES NOTE_ID, MISSED;

    -- Gates at which there may be something to do, those first that have waited for longest. None has a WAKE_TIME before the mark:
    -- what is there, are versions that an old transaction keeps.
    WHILE (PAUSED = 0 AND ROOM_LEFT > 0 AND VISITS < 200) DO
    BEGIN
        LANE = NULL;
        SELECT FIRST 1 G.LANE, G.USED, G.FREE_US, G.MARK_RANK, G.MARK_ID, G.WAKE_TIME FROM QUEUE_GATE G
            WHERE G.OWNER_ID = :LIMIT_ID AND G.WAKE_TIME BETWEEN :WAKE_MARK AND :NOW_UTC
            ORDER BY G.OWNER_ID, G.WAKE_TIME INTO :LANE, :USED, :FREE_US, :MARK_RANK, :MARK_ID, :WAKE_MARK;
        IF (LANE IS NULL) THEN
            LEAVE;
        VISITS = VISITS + 1;
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
                TASK_QUEUE = NULL;
                SELECT T.QUEUE, T.TRAITS, T.SUSPECT, T.EXPIRE_TIME FROM QUEUE_TASK T WHERE T.ID = :TASK_ID AND T.STATE = 4
                    FOR UPDATE WITH LOCK SKIP LOCKED INTO :TASK_QUEUE, :TRAITS, :SUSPECT, :EXPIRE_TIME;
                IF (TASK_QUEUE IS NULL AND EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.ID = :TASK_ID AND T.STATE = 4)) THEN
                BEGIN
                    SKIPPED = 1;
                    VERDICT = IIF(IN_ORDER = 1, 'L', 'N');
                    CONTINUE;
                END
                DELETE FROM QUEUE_TICKET K WHERE K.OWNER_ID = :LIMIT_ID AND K.LANE = :LANE AND K.PRIORITY_RANK = :AT_RANK
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
                    EXECUTE PROCEDURE QUEUE_ARCHIVE_V1(TASK_ID, 12, NULL, 0, NULL, 'expired before it began', NULL, NULL, NULL);
                    CONTINUE;
                END
                USED = USED + 1;
                FREE_US = IIF(PERIOD_US > 0, TOKEN_US + PERIOD_US, FREE_US);
                NEXT_OWNER = NULL;
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
                BEGIN
                    IDS = IDS || LPAD(TASK_ID, 19, '0');
                    ROOM_LEFT = ROOM_LEFT - 1;
                END
                ELSE
                BEGIN
                    UPDATE QUEUE_TASK T SET STATE = 0, TRAITS = BIN_OR(TRAITS, 512) WHERE T.ID = :TASK_ID;
                    POST_EVENT 'fbtasks:queue:' || TASK_QUEUE;
                END
            END
        END
        -- A rate forgets a key when its tokens are all there again.
        TOKEN_US = IIF(VERDICT = 'E', FREE_US + (BURST - 1) * PERIOD_US, TOKEN_US);
        IF (VERDICT = 'E' AND USED = 0 AND COALESCE(TOKEN_US, 0) <= NOW_US) THEN
            DELETE FROM QUEUE_GATE G WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
        ELSE
            UPDATE QUEUE_GATE G SET USED = :USED, FREE_US = :FREE_US, MARK_RANK = :MARK_RANK, MARK_ID = :MARK_ID,
                WAITS = IIF(:VERDICT = 'E', 0, 1), WAKE_TIME = CASE
                    WHEN :VERDICT = 'R' THEN DATEADD(1 MILLISECOND TO :NOW_UTC)
                    WHEN :VERDICT = 'L' THEN DATEADD(1 SECOND TO :NOW_UTC)
                    WHEN :VERDICT = 'S' AND :USED >= :AT_ONCE THEN NULL
                    ELSE DATEADD(:TOKEN_US / 1000 + 1 MILLISECOND TO TIMESTAMP '1970-01-01') END
                WHERE G.OWNER_ID = :LIMIT_ID AND G.LANE = :LANE;
    END
    UPDATE QUEUE_DISPATCH D SET MARK_ID = :NOTE_ID, WAKE_MARK = :WAKE_MARK WHERE D.SUBSCRIPTION_ID = :LIMIT_ID;
END^

-- Whether there may be something to let in by a limit now, and else in how many milliseconds (NULL: when something happens).
CREATE OR ALTER PROCEDURE QUEUE_LIMIT_READY_V1 (LIMIT_ID INTEGER)
RETURNS (READY SMALLINT, NEXT_MS BIGINT)
SQL SECURITY DEFINER
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE WAKE_TIME TIMESTAMP;
BEGIN
    READY = IIF(EXISTS(SELECT 1 FROM QUEUE_NOTE N WHERE N.OWNER_ID = :LIMIT_ID), 1, 0);
    IF (READY = 0) THEN
    BEGIN
        NOW_UTC = CAST(CURRENT_TIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP);
        SELECT FIRST 1 G.WAKE_TIME FROM QUEUE_DISPATCH D JOIN QUEUE_LIMIT L ON L.ID = D.SUBSCRIPTION_ID
            JOIN QUEUE_GATE G ON G.OWNER_ID = D.SUBSCRIPTION_ID AND G.WAKE_TIME >= D.WAKE_MARK
            WHERE D.SUBSCRIPTION_ID = :LIMIT_ID AND L.PAUSED = 0 ORDER BY G.OWNER_ID, G.WAKE_TIME INTO :WAKE_TIME;
        IF (WAKE_TIME <= NOW_UTC) THEN
            READY = 1;
        ELSE
            NEXT_MS = CEIL(DATEDIFF(MILLISECOND FROM NOW_UTC TO WAKE_TIME));
    END
END^

-- Lets in what QUEUE is to claim now of what waits for limits: the ids of up to ROOM tasks, of 19 digits each, in IDS. Tasks that are
-- ready already have the room that is theirs by rank; of their own rank, they share it.
CREATE OR ALTER PROCEDURE QUEUE_ADMIT_V1 (QUEUE VARCHAR(63) CHARACTER SET ASCII, ROOM INTEGER, FROM_START SMALLINT)
RETURNS (IDS VARCHAR(20000) CHARACTER SET ASCII, MISSED SMALLINT)
SQL SECURITY DEFINER
AS
    DECLARE LIMIT_ID INTEGER;
    DECLARE FOUND VARCHAR(10000) CHARACTER SET ASCII = '';
    DECLARE SHARERS INTEGER = 0;
    DECLARE READY_RANK SMALLINT;
    DECLARE SUSPECT SMALLINT;
    DECLARE READY INTEGER;
    DECLARE HALF INTEGER;
    DECLARE ROOM_LEFT INTEGER;
    DECLARE ROOM_AFTER INTEGER;
    DECLARE SHARE INTEGER;
    DECLARE SOME_IDS VARCHAR(20000) CHARACTER SET ASCII;
    DECLARE MISSED_ONE SMALLINT;
    DECLARE IS_READY SMALLINT;
    DECLARE NEXT_MS BIGINT;
BEGIN
    IDS = '';
    MISSED = 0;
    ROOM = MINVALUE(ROOM, 1000);
    FOR SELECT DISTINCT U.LIMIT_ID FROM QUEUE_LIMIT_USE U WHERE U.QUEUE = :QUEUE ORDER BY U.LIMIT_ID INTO :LIMIT_ID DO
    BEGIN
        EXECUTE PROCEDURE QUEUE_LIMIT_READY_V1(LIMIT_ID) RETURNING_VALUES IS_READY, NEXT_MS;
        IF (IS_READY = 1 AND SHARERS < 900) THEN
        BEGIN
            FOUND = FOUND || LPAD(LIMIT_ID, 11);
            SHARERS = SHARERS + 1;
        END
    END
    IF (SHARERS = 0) THEN
        EXIT;
    SELECT FIRST 1 T.PRIORITY_RANK, T.SUSPECT FROM QUEUE_TASK T WHERE T.STATE = 0 AND T.QUEUE = :QUEUE
        ORDER BY T.STATE, T.QUEUE, T.PRIORITY_RANK, T.START_TIME, T.ID INTO :READY_RANK, :SUSPECT;
    HALF = ROOM / 2 + MOD(CURRENT_TRANSACTION, 2) * MOD(ROOM, 2);  -- of a room for one, every second time
    IF (SUSPECT > 0 AND MOD(CURRENT_TRANSACTION, 2) = 0) THEN  -- which is claimed alone
        EXIT;
    SELECT COUNT(*) FROM (SELECT FIRST (:ROOM) 1 AS ONE FROM QUEUE_TASK T WHERE T.STATE = 0 AND T.QUEUE = :QUEUE) INTO :READY;
    READY_RANK = COALESCE(READY_RANK, 9999);
    ROOM_LEFT = ROOM;
    WHILE (SHARERS > 0 AND ROOM_LEFT > 0) DO
    BEGIN
        -- In the order of their numbers, in which a task passes them.
        LIMIT_ID = CAST(SUBSTRING(FOUND FROM CHAR_LENGTH(FOUND) - 11 * SHARERS + 1 FOR 11) AS INTEGER);
        SHARE = (ROOM_LEFT + SHARERS - 1) / SHARERS;
        EXECUTE PROCEDURE QUEUE_ADMIT_ONE_V1(LIMIT_ID, QUEUE, FROM_START, SHARE, READY_RANK,
            MAXVALUE(0, SHARE - ROOM_LEFT + MINVALUE(READY, HALF)), MAXVALUE(0, SHARE - ROOM_LEFT + READY))
            RETURNING_VALUES SOME_IDS, ROOM_AFTER, MISSED_ONE;
        IDS = IDS || SOME_IDS;
        ROOM_LEFT = ROOM_LEFT - SHARE + ROOM_AFTER;
        MISSED = MAXVALUE(MISSED, MISSED_ONE);
        SHARERS = SHARERS - 1;
    END
END^

SET TERM ; ^
