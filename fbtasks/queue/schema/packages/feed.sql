-- What a claim is given beside the tasks that are ready: those that their owners let in now. An owner is a limit, a
-- subscription, or that of groups, whose number is 0.
SET TERM ^ ;

PACKAGE FBTASKS_CORE^

-- TRUE: a worker serves QUEUE, or tasks are in it. A worker has its weight and how many at once behind a queue:
-- mail:3=2 (queue/shares.py).
PRIVATE FUNCTION IS_IN_USE (QUEUE QUEUE_NAME)
RETURNS BOOLEAN
AS
    DECLARE STATE SMALLINT = 0;
    DECLARE FOUND BOOLEAN;
BEGIN
    FOUND = EXISTS(SELECT 1 FROM QUEUE_PROCESS WHERE POSITION(',' || REPLACE(:QUEUE, ':', ',') || ','
        IN ',' || REPLACE(REPLACE(QUEUES, ':', ','), '=', ',') || ',') > 0);
    WHILE (NOT FOUND AND STATE <= 5) DO
    BEGIN
        FOUND = EXISTS(SELECT 1 FROM QUEUE_TASK WHERE STATE = :STATE AND QUEUE = :QUEUE);
        STATE = STATE + 1;
    END
    RETURN FOUND;
END^

-- Notes that an owner lets tasks of QUEUE in, in a transaction of its own: nobody waits for the end of the caller's.
-- DONE is 0 when that is known. What is noted stays, and who ends a task tells all these queues: so of queues that
-- nobody uses a hundred are noted.
PROCEDURE FEEDS (OWNER_ID INTEGER, QUEUE QUEUE_NAME)
RETURNS (DONE SMALLINT)
AS
    DECLARE IS_USED BOOLEAN;
    DECLARE MANY INTEGER;
BEGIN
    DONE = 0;
    IF (NOT EXISTS(SELECT 1 FROM QUEUE_FEEDER F JOIN QUEUE_POLICY P ON P.QUEUE = F.QUEUE
            WHERE F.QUEUE = :QUEUE AND F.OWNER_ID = :OWNER_ID AND P.FED = 1)) THEN
    BEGIN
        EXECUTE PROCEDURE CHECK_CALL('name', QUEUE, 0, NULL);
        IS_USED = IS_IN_USE(QUEUE);
        IN AUTONOMOUS TRANSACTION DO
        BEGIN
            -- Here all is seen that was noted, also by the caller's statement.
            SELECT COUNT(*) FROM (SELECT FIRST 100 1 AS ONE FROM QUEUE_FEEDER WHERE OWNER_ID = :OWNER_ID) INTO :MANY;
            IF (MANY = 100 AND NOT IS_USED AND NOT IS_IN_USE(QUEUE)) THEN
                EXCEPTION QUEUE_BAD_CALL 'no worker serves the queue ' || QUEUE || ', nothing is in it, and 100 other '
                    || 'queues are noted for the same: start a worker of the queue, and enqueue the task again';
            IF (NOT EXISTS(SELECT 1 FROM QUEUE_FEEDER WHERE QUEUE = :QUEUE AND OWNER_ID = :OWNER_ID)) THEN
                INSERT INTO QUEUE_FEEDER (QUEUE, OWNER_ID) VALUES (:QUEUE, :OWNER_ID);
            IF (NOT EXISTS(SELECT 1 FROM QUEUE_POLICY WHERE QUEUE = :QUEUE AND FED = 1)) THEN
                UPDATE OR INSERT INTO QUEUE_POLICY (QUEUE, FED) VALUES (:QUEUE, 1) MATCHING (QUEUE);
        END
        DONE = 1;
    END
END^

-- The owners that may let something of QUEUE in: of which something is noted, which have something that nobody notes,
-- or whose moment has come; up to 50 of each, from FIRST_ID on. One may come several times. The tables lead from one to
-- the next, so that those are met alone of which there is something. KIND G is that of groups.
PRIVATE PROCEDURE DUE_OWNERS (QUEUE QUEUE_NAME, FIRST_ID INTEGER)
RETURNS (OWNER_ID INTEGER, KIND QUEUE_MARK, PRIORITY_RANK SMALLINT, NUMBER INTEGER)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE PART SMALLINT = 0;
    DECLARE NEXT_ID BIGINT;
    DECLARE LAST_ID INTEGER;
    DECLARE MOST INTEGER;
BEGIN
    NOW_UTC = QUEUE_NOW();
    NUMBER = 0;
    IF (EXISTS(SELECT 1 FROM QUEUE_NOTE WHERE OWNER_ID = 0 AND ID > 0 ORDER BY OWNER_ID, ID)) THEN
    BEGIN
        OWNER_ID = 0;
        KIND = 'G';
        SUSPEND;
    END
    WHILE (PART < 4) DO  -- notes, and the others, each from FIRST_ID on, and then those before
    BEGIN
        MOST = IIF(MOD(PART, 2) = 0, NUMBER + 50, MOST);
        NEXT_ID = IIF(MOD(PART, 2) = 0, FIRST_ID, 1);
        LAST_ID = IIF(MOD(PART, 2) = 0, 2147483647, FIRST_ID - 1);
        WHILE (NEXT_ID <= LAST_ID AND NUMBER < MOST) DO
        BEGIN
            IF (PART < 2) THEN
                OWNER_ID = (SELECT FIRST 1 OWNER_ID FROM QUEUE_NOTE
                    WHERE QUEUE = :QUEUE AND OWNER_ID >= :NEXT_ID ORDER BY QUEUE, OWNER_ID);
            ELSE
                EXECUTE PROCEDURE FBTASKS_HOOKS.NEXT_OWNER(NEXT_ID) RETURNING_VALUES OWNER_ID;
            IF (OWNER_ID IS NULL OR OWNER_ID > LAST_ID) THEN
                LEAVE;
            NEXT_ID = CAST(OWNER_ID AS BIGINT) + 1;  -- not >, which would read all of this one
            EXECUTE PROCEDURE FBTASKS_HOOKS.OWNER(OWNER_ID, QUEUE) RETURNING_VALUES KIND, PRIORITY_RANK;
            IF (KIND = 'S' OR (PART < 2 AND KIND IS NOT NULL)) THEN
            BEGIN
                NUMBER = NUMBER + 1;
                SUSPEND;
            END
        END
        PART = PART + IIF(FIRST_ID <= 1, 2, 1);
    END
    FOR SELECT FIRST 50 OWNER_ID FROM QUEUE_FEEDER
        WHERE QUEUE = :QUEUE AND DUE_TIME BETWEEN TIMESTAMP '0001-01-01' AND :NOW_UTC
        ORDER BY QUEUE, DUE_TIME INTO :OWNER_ID DO
    BEGIN
        EXECUTE PROCEDURE FBTASKS_HOOKS.OWNER(OWNER_ID, QUEUE) RETURNING_VALUES KIND, PRIORITY_RANK;
        NUMBER = NUMBER + 1;
        IF (KIND IS NOT NULL) THEN
            SUSPEND;
    END
END^

-- Whether an owner may let something of QUEUE in now, and else in how many milliseconds (NULL: when something happens).
PROCEDURE LOOK (QUEUE QUEUE_NAME)
RETURNS (READY SMALLINT, NEXT_MS BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE OWNER_ID INTEGER;
    DECLARE KIND QUEUE_MARK;
    DECLARE FULL_UP SMALLINT;
    DECLARE ONE_MS BIGINT;
    DECLARE DUE_TIME TIMESTAMP;
BEGIN
    NOW_UTC = QUEUE_NOW();
    READY = 0;
    SELECT FIRST 1 DUE_TIME FROM QUEUE_FEEDER WHERE QUEUE = :QUEUE AND DUE_TIME > :NOW_UTC
        ORDER BY QUEUE, DUE_TIME INTO :DUE_TIME;
    NEXT_MS = CEIL(DATEDIFF(MILLISECOND FROM NOW_UTC TO DUE_TIME));
    FOR SELECT OWNER_ID, KIND FROM DUE_OWNERS(:QUEUE, 1) INTO :OWNER_ID, :KIND DO
    BEGIN
        READY = 1;
        IF (KIND = 'S') THEN
        BEGIN
            IF (FULL_UP IS NULL) THEN
                FULL_UP = IIF(EXISTS(SELECT 1 FROM QUEUE_POLICY WHERE QUEUE = :QUEUE AND MAX_LENGTH IS NOT NULL)
                    AND NOT EXISTS(SELECT 1 FROM QUEUE_PLACE WHERE QUEUE = :QUEUE AND NO_ >= 0
                        ORDER BY QUEUE, NO_), 1, 0);
            EXECUTE PROCEDURE FBTASKS_HOOKS.LOOK(OWNER_ID, 1, FULL_UP) RETURNING_VALUES READY, ONE_MS;
            NEXT_MS = MINVALUE(COALESCE(NEXT_MS, ONE_MS), COALESCE(ONE_MS, NEXT_MS));
        END
        IF (READY = 1) THEN
            LEAVE;
    END
END^

-- How much of ROOM is for the ready tasks of a queue, before those of PRIORITY_RANK that an owner lets in: all that
-- more urgent ones need, and up to HALF for those of the same rank.
PRIVATE FUNCTION READY_SHARE (QUEUE QUEUE_NAME, PRIORITY_RANK SMALLINT, ROOM INTEGER, HALF INTEGER)
RETURNS INTEGER
AS
    DECLARE URGENT INTEGER;
    DECLARE SAME INTEGER;
BEGIN
    SELECT COUNT(*) FROM (SELECT FIRST (:ROOM) 1 AS ONE FROM QUEUE_TASK
        WHERE STATE = 0 AND QUEUE = :QUEUE AND PRIORITY_RANK < :PRIORITY_RANK) INTO :URGENT;
    SELECT COUNT(*) FROM (SELECT FIRST (:HALF) 1 AS ONE FROM QUEUE_TASK
        WHERE STATE = 0 AND QUEUE = :QUEUE AND PRIORITY_RANK = :PRIORITY_RANK) INTO :SAME;
    RETURN URGENT + SAME;
END^

-- Lets in what QUEUE is to claim now: the ids of up to ROOM tasks, of 19 digits each, in IDS; a batch takes one of
-- ROOM, whatever its size, and ADMITTED is how much was taken. Tasks that are ready already have the room that is
-- theirs by rank; of their own rank, they share it. Subscriptions come rank by rank, and limits share the room with
-- those of the first rank. A task that one owner has let in may be let in by its next one at once: so they are looked
-- at again. With FROM_START subscriptions are looked at from the start, for what was committed late. IDLES is 1 when
-- one whose tasks are idle work, behind LAST_RANK, has something. A task that is made here is written as claimed by
-- WORKER_ID; the claim that calls this takes it. CROWDED is 1 when owners have left room to ready
-- tasks: the claim calls this again with READY_HELD when other transactions hold those.
PROCEDURE FEED (
    WORKER_ID BIGINT, QUEUE QUEUE_NAME, ROOM INTEGER, FROM_START SMALLINT, LAST_RANK SMALLINT, READY_HELD SMALLINT)
RETURNS (IDS QUEUE_IDS, ADMITTED INTEGER, MISSED SMALLINT, CROWDED SMALLINT, IDLES SMALLINT)
AS
    DECLARE PASSES INTEGER = 0;
    DECLARE FIRST_ID INTEGER = 1;
    DECLARE TURN SMALLINT;
    DECLARE NOTED BIGINT;
    DECLARE OWNER_ID INTEGER;
    DECLARE KIND QUEUE_MARK;
    DECLARE PRIORITY_RANK SMALLINT;
    DECLARE SHARERS INTEGER;
    DECLARE READY_RANK SMALLINT;
    DECLARE SUSPECT SMALLINT = 0;
    DECLARE READY INTEGER;
    DECLARE HALF INTEGER;
    DECLARE READY_TIME TIMESTAMP;
    DECLARE SINCE_TIME TIMESTAMP;
    DECLARE AGE_MS BIGINT;
    DECLARE ROOM_LEFT INTEGER;
    DECLARE ROOM_AFTER INTEGER;
    DECLARE SHARE INTEGER;
    DECLARE LESS_SAME INTEGER;
    DECLARE LESS_HIGHER INTEGER;
    DECLARE FEW_IDS QUEUE_FEW_IDS;
    DECLARE MANY_IDS QUEUE_IDS;
    DECLARE MISSED_ONE SMALLINT;
    DECLARE MORE SMALLINT = 1;
    DECLARE ONE_IDLES SMALLINT;
    DECLARE NEXT_MS BIGINT;
BEGIN
    IDS = '';
    MISSED = 0;
    CROWDED = 0;
    IDLES = 0;
    ROOM = MINVALUE(ROOM, 1000);
    ROOM_LEFT = ROOM;
    IF (RAND() < 0.2) THEN  -- so that all have their turn
        FIRST_ID = 1 + FLOOR(RAND() * GEN_ID(QUEUE_OWNER_SEQ, 0));
    TURN = IIF(RAND() < 0.5, 1, -1);  -- else limits would take a room for one before subscriptions; G stays first
    WHILE (MORE = 1 AND ROOM_LEFT > 0 AND PASSES < 10 AND CHAR_LENGTH(IDS) < 19 * 900) DO
    BEGIN
        PASSES = PASSES + 1;
        MORE = 0;
        NOTED = GEN_ID(QUEUE_NOTE_SEQ, 0);
        FOR SELECT W.OWNER_ID, W.KIND, W.PRIORITY_RANK,
                ROW_NUMBER() OVER (PARTITION BY W.GROUP_RANK ORDER BY W.NUMBER DESC)
            FROM (SELECT OWNER_ID, KIND, PRIORITY_RANK, IIF(KIND = 'G', -1000, :TURN * MIN(NUMBER)) AS NUMBER,
                    COALESCE(PRIORITY_RANK, MIN(MIN(PRIORITY_RANK)) OVER ()) AS GROUP_RANK
                FROM DUE_OWNERS(:QUEUE, :FIRST_ID) GROUP BY OWNER_ID, KIND, PRIORITY_RANK) W
            ORDER BY W.GROUP_RANK, W.NUMBER INTO :OWNER_ID, :KIND, :PRIORITY_RANK, :SHARERS DO
        BEGIN
            IF (READY IS NULL AND KIND <> 'G') THEN  -- counted once
            BEGIN
                SELECT FIRST 1 PRIORITY_RANK, START_TIME, SUSPECT FROM QUEUE_TASK
                    WHERE STATE = 0 AND QUEUE = :QUEUE
                    ORDER BY STATE, QUEUE, PRIORITY_RANK, START_TIME, ID
                    INTO :READY_RANK, :READY_TIME, :SUSPECT;
                SELECT COUNT(*) FROM (SELECT FIRST (:ROOM) 1 AS ONE FROM QUEUE_TASK
                    WHERE STATE = 0 AND QUEUE = :QUEUE AND :READY_HELD = 0) INTO :READY;
                HALF = ROOM / 2 + IIF(MOD(ROOM, 2) = 1 AND RAND() < 0.5, 1, 0);  -- of a room for one, every second time
                SELECT AGE_MS FROM QUEUE_POLICY WHERE QUEUE = :QUEUE INTO :AGE_MS;
                IF (AGE_MS > 0) THEN  -- then no task is more urgent for good: they share it, whatever their ranks
                    READY = MINVALUE(READY, HALF);
                READY_RANK = IIF(READY = 0, 9999, READY_RANK);
                IF (SUSPECT > 0 AND RAND() < 0.5) THEN  -- which is claimed alone
                    LEAVE;
            END
            SHARE = (ROOM_LEFT + SHARERS - 1) / SHARERS;
            IF (KIND = 'S' AND SHARE > 0) THEN
            BEGIN
                LESS_SAME = 0;
                IF (READY > 0 AND PRIORITY_RANK = READY_RANK) THEN
                    LESS_SAME = MINVALUE(READY, HALF);
                ELSE IF (READY > 0 AND PRIORITY_RANK > READY_RANK AND AGE_MS > 0) THEN
                BEGIN
                    EXECUTE PROCEDURE FBTASKS_HOOKS.WAITS_SINCE(OWNER_ID) RETURNING_VALUES SINCE_TIME;
                    LESS_SAME = IIF(DATEDIFF(MILLISECOND FROM SINCE_TIME TO READY_TIME)
                        > CAST(PRIORITY_RANK - READY_RANK AS BIGINT) * AGE_MS, READY, ROOM);
                END
                ELSE IF (READY > 0 AND PRIORITY_RANK > READY_RANK) THEN
                    LESS_SAME = READY_SHARE(QUEUE, PRIORITY_RANK, ROOM, HALF);
                CROWDED = IIF(SHARE > ROOM_LEFT - LESS_SAME, 1, CROWDED);
                SHARE = MINVALUE(SHARE, ROOM_LEFT - LESS_SAME);
            END
            ELSE
            BEGIN
                LESS_SAME = MAXVALUE(0, SHARE - ROOM_LEFT + MINVALUE(READY, HALF));
                LESS_HIGHER = MAXVALUE(0, SHARE - ROOM_LEFT + READY);
                CROWDED = IIF(LESS_HIGHER > 0, 1, CROWDED);
            END
            ROOM_AFTER = SHARE;
            MISSED_ONE = 0;
            FEW_IDS = '';
            IF (KIND = 'G') THEN
                EXECUTE PROCEDURE FBTASKS_HOOKS.DECIDE RETURNING_VALUES MISSED_ONE;
            ELSE IF (PRIORITY_RANK > LAST_RANK) THEN
            BEGIN
                EXECUTE PROCEDURE FBTASKS_HOOKS.LOOK(OWNER_ID, FROM_START, 0)
                    RETURNING_VALUES ONE_IDLES, NEXT_MS;
                IDLES = MAXVALUE(IDLES, ONE_IDLES);
            END
            ELSE IF (SHARE > 0 AND KIND = 'B') THEN
            BEGIN
                EXECUTE PROCEDURE FBTASKS_HOOKS.FEED_BATCHES(OWNER_ID, QUEUE, SHARE, 1000 - CHAR_LENGTH(IDS) / 19,
                    READY_RANK, LESS_SAME, LESS_HIGHER) RETURNING_VALUES MANY_IDS, ROOM_AFTER, MISSED_ONE;
                IDS = IDS || MANY_IDS;
            END
            ELSE IF (SHARE > 0) THEN
            BEGIN
                EXECUTE PROCEDURE FBTASKS_HOOKS.FEED(OWNER_ID, QUEUE, SHARE, FROM_START, READY_RANK, LESS_SAME,
                    LESS_HIGHER, WORKER_ID) RETURNING_VALUES FEW_IDS, ROOM_AFTER, MISSED_ONE;
                -- Another transaction has locked a row of it: all else goes on.
                WHEN GDSCODE DEADLOCK, GDSCODE UPDATE_CONFLICT, GDSCODE LOCK_CONFLICT DO
                    MISSED_ONE = 1;
            END
            IDS = IDS || FEW_IDS;
            MORE = MAXVALUE(MORE, IIF(CHAR_LENGTH(FEW_IDS) = 1900, 1, 0));
            ROOM_LEFT = ROOM_LEFT - SHARE + ROOM_AFTER;
            MISSED = MAXVALUE(MISSED, MISSED_ONE);
            IF (CHAR_LENGTH(IDS) >= 19 * 900) THEN  -- no place for 100 more
                LEAVE;
        END
        MORE = IIF(GEN_ID(QUEUE_NOTE_SEQ, 0) > NOTED, 1, MORE);
    END
    ADMITTED = ROOM - ROOM_LEFT;
END^

SET TERM ; ^
