-- What becomes ready, and how it is claimed: what owners let in (feed.sql), and what is ready in the queue itself.
SET TERM ^ ;

PACKAGE FBTASKS_CORE^

-- Whether a queue with a window is open now, and else how many milliseconds remain until it opens (NULL: that is not
-- known).
PROCEDURE IS_OPEN (QUEUE QUEUE_NAME)
RETURNS (IS_OPEN SMALLINT, OPENS_MS BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE OPEN_TIME TIMESTAMP;
BEGIN
    NOW_UTC = QUEUE_NOW();
    SELECT FIRST 1 OPEN_TIME FROM QUEUE_SHIFT WHERE QUEUE = :QUEUE AND CLOSE_TIME > :NOW_UTC
        ORDER BY QUEUE, CLOSE_TIME INTO :OPEN_TIME;
    IS_OPEN = IIF(OPEN_TIME <= NOW_UTC, 1, 0);
    IF (OPEN_TIME > NOW_UTC) THEN
        OPENS_MS = CEIL(DATEDIFF(MILLISECOND FROM NOW_UTC TO OPEN_TIME));
END^

-- Puts a task that cannot be claimed now where it is to wait: one whose name is paused is parked, without the places
-- of limits that it does not keep; one that was parked that way, and goes on, waits for them anew.
PROCEDURE PUT_ASIDE (ID BIGINT, IS_PAUSED SMALLINT)
AS
BEGIN
    IF (IS_PAUSED = 1) THEN
    BEGIN
        UPDATE QUEUE_TASK SET STATE = 3, WORKER_ID = NULL, CLAIM_ID = NULL, CLAIM_TIME = QUEUE_NOW() WHERE ID = :ID;
        EXECUTE PROCEDURE WAIT_AGAIN(ID);
    END
    ELSE
        EXECUTE PROCEDURE MAKE_READY(ID);
END^

PACKAGE FBTASKS_WORKER^

-- Whether any of QUEUES, which are divided by commas, has a task that is ready or a source that has work, and how
-- many milliseconds remain until the next scheduled task is due (NULL: nothing is scheduled; 0 and less: it is), and
-- until the next source is, or a queue opens that is closed now (NULL: neither).
PROCEDURE ANY_READY (QUEUES QUEUE_DIGITS)
RETURNS (READY SMALLINT, NEXT_MS BIGINT, LOOK_MS BIGINT)
AS
    DECLARE FED SMALLINT;
    DECLARE WINDOWED SMALLINT;
    DECLARE PAUSED SMALLINT;
    DECLARE QUEUE_LIMIT_ID INTEGER;
    DECLARE IS_OPEN SMALLINT;
    DECLARE QUEUE QUEUE_NAME;
    DECLARE ONE_NEXT_MS BIGINT;
BEGIN
    READY = 0;
    FOR SELECT L.QUEUE, P.FED, P.WINDOWED, P.PAUSED, P.LIMIT_ID, 1
        FROM FBTASKS_CORE.LISTED(:QUEUES) L LEFT JOIN QUEUE_POLICY P ON P.QUEUE = L.QUEUE
        INTO :QUEUE, :FED, :WINDOWED, :PAUSED, :QUEUE_LIMIT_ID, :IS_OPEN DO
    BEGIN
        IF (PAUSED = 1) THEN
            CONTINUE;
        IF (WINDOWED = 1) THEN
        BEGIN
            EXECUTE PROCEDURE FBTASKS_CORE.IS_OPEN(QUEUE) RETURNING_VALUES IS_OPEN, ONE_NEXT_MS;
            LOOK_MS = MINVALUE(COALESCE(LOOK_MS, ONE_NEXT_MS), COALESCE(ONE_NEXT_MS, LOOK_MS));
        END
        IF (IS_OPEN = 1 AND QUEUE_LIMIT_ID IS NOT NULL) THEN
        BEGIN
            EXECUTE PROCEDURE FBTASKS_HOOKS.HAS_ROOM(QUEUE_LIMIT_ID) RETURNING_VALUES IS_OPEN, ONE_NEXT_MS;
            LOOK_MS = MINVALUE(COALESCE(LOOK_MS, ONE_NEXT_MS), COALESCE(ONE_NEXT_MS, LOOK_MS));
        END
        IF (IS_OPEN = 0) THEN
            CONTINUE;
        IF (EXISTS(SELECT 1 FROM QUEUE_TASK WHERE STATE = 0 AND QUEUE = :QUEUE ORDER BY STATE, QUEUE)) THEN
            READY = 1;
        IF (READY = 0 AND FED = 1) THEN
        BEGIN
            EXECUTE PROCEDURE FBTASKS_CORE.LOOK(QUEUE) RETURNING_VALUES READY, ONE_NEXT_MS;
            LOOK_MS = MINVALUE(COALESCE(LOOK_MS, ONE_NEXT_MS), COALESCE(ONE_NEXT_MS, LOOK_MS));
        END
        IF (READY = 1) THEN
            LEAVE;
    END
    SELECT FIRST 1 DATEDIFF(MILLISECOND FROM QUEUE_NOW() TO START_TIME)
        FROM QUEUE_TASK WHERE DUE_TIME >= TIMESTAMP '0001-01-01'
        ORDER BY DUE_TIME INTO :NEXT_MS;
    SUSPEND;
END^

-- Moves what is due from scheduled to ready, by the same skip-locked cursor as the claim, and tells how many
-- milliseconds remain until the next one is (NULL: nothing is scheduled; 0: more may be due).
PROCEDURE PROMOTE (MOST INTEGER)
RETURNS (PROMOTED INTEGER, NEXT_MS BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE ID BIGINT;
    DECLARE QUEUE QUEUE_NAME;
    DECLARE LAST_QUEUE QUEUE_NAME = '';
    DECLARE HAS_HOLDS BOOLEAN;
    DECLARE NEXT_TIME TIMESTAMP;
    -- Not FOR SELECT: after a conflict the engine runs the statement again, and such a loop then locks all that is due.
    DECLARE DUE CURSOR FOR (
        SELECT ID, QUEUE, HAS_HOLDS FROM QUEUE_TASK
        WHERE DUE_TIME BETWEEN TIMESTAMP '0001-01-01' AND :NOW_UTC
        ORDER BY DUE_TIME FOR UPDATE WITH LOCK SKIP LOCKED);
BEGIN
    NOW_UTC = QUEUE_NOW();
    PROMOTED = 0;
    SELECT FIRST 1 DUE_TIME FROM QUEUE_TASK WHERE DUE_TIME >= TIMESTAMP '0001-01-01' ORDER BY DUE_TIME
        INTO :NEXT_TIME;
    IF (NEXT_TIME IS NULL OR NEXT_TIME > NOW_UTC) THEN
    BEGIN
        NEXT_MS = DATEDIFF(MILLISECOND FROM NOW_UTC TO NEXT_TIME);
        SUSPEND;
        EXIT;
    END
    OPEN DUE;
    WHILE (PROMOTED < MOST) DO
    BEGIN
        FETCH DUE INTO :ID, :QUEUE, :HAS_HOLDS;
        IF (ROW_COUNT = 0) THEN
            LEAVE;
        IF (HAS_HOLDS) THEN
            EXECUTE PROCEDURE FBTASKS_CORE.MAKE_READY(ID);
        ELSE
            UPDATE QUEUE_TASK SET STATE = 0 WHERE ID = :ID;  -- by its key: a standby does not find what this may make
        PROMOTED = PROMOTED + 1;
        IF (QUEUE <> LAST_QUEUE) THEN
            POST_EVENT 'fbtasks:queue:' || QUEUE;
        LAST_QUEUE = QUEUE;
    END
    CLOSE DUE;
    IF (PROMOTED >= MOST) THEN
        NEXT_MS = 0;
    ELSE
        SELECT FIRST 1 DATEDIFF(MILLISECOND FROM :NOW_UTC TO START_TIME) FROM QUEUE_TASK
            WHERE DUE_TIME > :NOW_UTC ORDER BY DUE_TIME INTO :NEXT_MS;
    SUSPEND;
END^

-- Which ready tasks of a queue with AGE_MS a claim reads next: those of RANK that are due from FROM_TIME to
-- UNTIL_TIME. A task sorts by its START_TIME + its rank * AGE_MS, here in tenths of a millisecond (KEY_). The queue
-- is read in windows of this key, from the lowest on, and each window rank by rank. A window is as wide as a tenth of
-- the age, or half of what was read before where that is more: so a claim that finds little in many windows looks at
-- few. ITEMS has the ranks, in six characters each, with the key of the first task that was not read, in twenty. What
-- it has no room for is left to the claim.
PRIVATE PROCEDURE AGED (QUEUE QUEUE_NAME, AGE_MS BIGINT)
RETURNS (RANK SMALLINT, FROM_TIME TIMESTAMP, UNTIL_TIME TIMESTAMP)
AS
    DECLARE EPOCH TIMESTAMP = TIMESTAMP '1970-01-01';
    DECLARE AGE BIGINT;
    DECLARE ITEMS VARCHAR(26000) CHARACTER SET ASCII = '';
    DECLARE LEFT_OVER VARCHAR(26000) CHARACTER SET ASCII;
    DECLARE NEXT_RANK SMALLINT = -9999;
    DECLARE START_TIME TIMESTAMP;
    DECLARE KEY_ BIGINT;
    DECLARE LOWEST_KEY BIGINT;
    DECLARE NEXT_KEY BIGINT;
    DECLARE UNTIL_KEY BIGINT;
    DECLARE AT_BYTE INTEGER;
BEGIN
    AGE = 10 * AGE_MS;
    WHILE (NEXT_RANK IS NOT NULL AND OCTET_LENGTH(ITEMS) <= 25900) DO
    BEGIN
        RANK = NULL;
        SELECT FIRST 1 PRIORITY_RANK, START_TIME FROM QUEUE_TASK
            WHERE STATE = 0 AND QUEUE = :QUEUE AND PRIORITY_RANK >= :NEXT_RANK AND PRIORITY_RANK <= 9998
            ORDER BY STATE, QUEUE, PRIORITY_RANK, START_TIME INTO :RANK, :START_TIME;
        IF (RANK IS NOT NULL) THEN
        BEGIN
            KEY_ = 10 * DATEDIFF(MILLISECOND FROM EPOCH TO START_TIME) + RANK * AGE;
            ITEMS = ITEMS || LPAD(RANK, 6) || LPAD(KEY_, 20);
            NEXT_KEY = MINVALUE(COALESCE(NEXT_KEY, KEY_), KEY_);
        END
        NEXT_RANK = RANK + 1;
    END
    LOWEST_KEY = NEXT_KEY;
    WHILE (ITEMS <> '') DO
    BEGIN
        UNTIL_KEY = NEXT_KEY + MAXVALUE(AGE / 10, (NEXT_KEY - LOWEST_KEY) / 2);
        NEXT_KEY = NULL;
        LEFT_OVER = '';
        AT_BYTE = 1;
        WHILE (AT_BYTE < OCTET_LENGTH(ITEMS)) DO
        BEGIN
            RANK = SUBSTRING(ITEMS FROM AT_BYTE FOR 6);
            KEY_ = SUBSTRING(ITEMS FROM AT_BYTE + 6 FOR 20);
            AT_BYTE = AT_BYTE + 26;
            IF (KEY_ <= UNTIL_KEY) THEN
            BEGIN
                FROM_TIME = DATEADD((KEY_ - RANK * AGE) / 10.0 MILLISECOND TO EPOCH);
                UNTIL_TIME = DATEADD(MINVALUE(UNTIL_KEY - RANK * AGE, 2534023007999999) / 10.0 MILLISECOND TO EPOCH);
                SUSPEND;
                START_TIME = IIF(UNTIL_TIME < TIMESTAMP '9999-12-31 23:59:59.9999',
                    DATEADD(0.1 MILLISECOND TO UNTIL_TIME), NULL);
                KEY_ = (SELECT FIRST 1 10 * DATEDIFF(MILLISECOND FROM :EPOCH TO START_TIME) + :RANK * :AGE
                    FROM QUEUE_TASK
                    WHERE STATE = 0 AND QUEUE = :QUEUE AND PRIORITY_RANK = :RANK AND START_TIME >= :START_TIME
                    ORDER BY STATE, QUEUE, PRIORITY_RANK, START_TIME);
            END
            IF (KEY_ IS NOT NULL) THEN
            BEGIN
                LEFT_OVER = LEFT_OVER || LPAD(RANK, 6) || LPAD(KEY_, 20);
                NEXT_KEY = MINVALUE(COALESCE(NEXT_KEY, KEY_), KEY_);
            END
        END
        ITEMS = LEFT_OVER;
    END
END^

-- What a claim asks before it reads any task. ROOM is how many it may claim, NULL: none, since other packages are in
-- use (the worker records what it runs, and claims nothing more), the queue or the parked name is paused, or the queue
-- is outside its window; 0: its limit, LIMIT_ID, has no room, or, with MISSED 1, another transaction is at that. RULED:
-- names are asked for. FEEDS is 0 when owners are to be asked first, NULL: there are none.
PRIVATE PROCEDURE MAY_CLAIM (QUEUE QUEUE_NAME, MOST INTEGER, PARKED QUEUE_TEXT)
RETURNS (
    ROOM INTEGER, RULED SMALLINT, FEEDS SMALLINT, AGE_MS BIGINT, LIMIT_ID INTEGER, MISSED SMALLINT)
AS
    DECLARE WINDOWED SMALLINT = 0;
    DECLARE PAUSED SMALLINT = 0;
    DECLARE IS_OPEN SMALLINT = 1;
    DECLARE OPENS_MS BIGINT;
BEGIN
    IF (NOT EXISTS(SELECT 1 FROM QUEUE_GENERATION WHERE NUMBER = THIS_GENERATION)) THEN
        EXIT;
    SELECT IIF(FED = 1 AND :PARKED IS NULL, 0, NULL), WINDOWED, PAUSED, LIMIT_ID,
            IIF(:PARKED IS NULL, AGE_MS, NULL)
        FROM QUEUE_POLICY WHERE QUEUE = :QUEUE
        INTO :FEEDS, :WINDOWED, :PAUSED, :LIMIT_ID, :AGE_MS;
    IF (WINDOWED = 1 AND PAUSED = 0) THEN
        EXECUTE PROCEDURE FBTASKS_CORE.IS_OPEN(QUEUE) RETURNING_VALUES IS_OPEN, OPENS_MS;
    IF (PAUSED = 1 OR IS_OPEN = 0) THEN
        EXIT;
    RULED = IIF(EXISTS(SELECT 1 FROM QUEUE_RULE WHERE PAUSED = 1), 1, 0);
    IF (PARKED IS NOT NULL) THEN
    BEGIN
        IF (RULED = 1 AND EXISTS(SELECT 1 FROM QUEUE_RULE WHERE NAME = :PARKED AND PAUSED = 1)) THEN
            EXIT;
        RULED = 1;
    END
    ROOM = MOST;
    MISSED = 0;
    IF (LIMIT_ID IS NOT NULL) THEN
        EXECUTE PROCEDURE FBTASKS_HOOKS.ROOM(LIMIT_ID, MOST) RETURNING_VALUES ROOM, MISSED;
END^

-- Ends or puts aside a task that a claim has come to and does not take.
PRIVATE PROCEDURE PASS_OVER (ID BIGINT, IS_EXPIRED SMALLINT, IS_PAUSED SMALLINT)
AS
BEGIN
    IF (ID < 1) THEN
        EXECUTE PROCEDURE FBTASKS_CORE.ARCHIVE(ID, 11, NULL, 0, 'fbtasks.errors.DatabaseError', 'its ID, ' || ID
            || ', is not above 0: insert rows by FBTASKS_CORE.ENQUEUE, or with an ID of QUEUE_TASK_SEQ',
            NULL, NULL, NULL);
    ELSE IF (IS_EXPIRED = 1) THEN
        EXECUTE PROCEDURE FBTASKS_CORE.CANCEL_WAITING(ID, 'expired before it began');
    ELSE
        EXECUTE PROCEDURE FBTASKS_CORE.PUT_ASIDE(ID, IS_PAUSED);
END^

-- Whether a claim passes a task over whose NAME is paused; of parked ones, those as well that wait for a limit anew.
PRIVATE FUNCTION IS_HELD_BACK (ID BIGINT, NAME QUEUE_TEXT, PARKED QUEUE_TEXT)
RETURNS SMALLINT
AS
BEGIN
    RETURN IIF(EXISTS(SELECT 1 FROM QUEUE_RULE WHERE NAME = :NAME AND PAUSED = 1) OR (PARKED IS NOT NULL
        AND EXISTS(SELECT 1 FROM QUEUE_HOLD WHERE TASK_ID = :ID AND SORT_KEY < 30000)), 1, 0);
END^

-- Whether a worker runs a repeated suspect: it has one at a time.
PRIVATE FUNCTION HAS_REPEATED (WORKER_ID BIGINT)
RETURNS BOOLEAN
AS
BEGIN
    RETURN EXISTS(SELECT 1 FROM QUEUE_TASK WHERE STATE = 2 AND WORKER_ID = :WORKER_ID AND SUSPECT = 2);
END^

-- What a claim reads, part by part, beside what owners let in: tasks of RANK that are due from FROM_TIME to UNTIL_TIME,
-- and with an AFTER_ID, of that one moment, those behind it. MARKS says how far the caller has read the queue lately,
-- in 46 characters for each rank that it knows, in their order: the rank (6), and where its last claim of that rank
-- ended (20 for START_TIME in tenths of a millisecond, 20 for ID); 0 and 0: it has read that rank to its end. What was
-- claimed before a mark may still be in the index, as versions that an old transaction keeps. So such a rank is read
-- from its mark on, one that was read to its end from two seconds ago on, and all of them from the beginning only when
-- that is not enough. A queue with ageing is read as AGED says, without marks, and then for what came meanwhile. A last
-- RANK behind LAST_RANK tells that idle work is left.
PRIVATE PROCEDURE STRETCHES (
    QUEUE QUEUE_NAME, STATE SMALLINT, AGE_MS BIGINT, LAST_RANK SMALLINT, MARKS VARCHAR(1000) CHARACTER SET OCTETS)
RETURNS (RANK SMALLINT, FROM_TIME TIMESTAMP, UNTIL_TIME TIMESTAMP, AFTER_ID BIGINT)
AS
    DECLARE END_OF_TIME TIMESTAMP = TIMESTAMP '9999-12-31 23:59:59.9999';
    DECLARE PASSES SMALLINT;
    DECLARE NEXT_RANK SMALLINT;
    DECLARE MARKED_RANK SMALLINT;
BEGIN
    IF (AGE_MS IS NOT NULL) THEN
        FOR SELECT RANK, FROM_TIME, UNTIL_TIME FROM AGED(:QUEUE, :AGE_MS)
            INTO :RANK, :FROM_TIME, :UNTIL_TIME DO
            SUSPEND;
    PASSES = IIF(MARKS = '', 1, 2);
    WHILE (PASSES > 0) DO
    BEGIN
        NEXT_RANK = -32768;
        WHILE (NEXT_RANK <= LAST_RANK) DO
        BEGIN
            MARKED_RANK = IIF(MARKS = '', NULL, CAST(SUBSTRING(MARKS FROM 1 FOR 6) AS SMALLINT));
            RANK = NULL;
            IF (MARKED_RANK IS NULL OR MARKED_RANK > NEXT_RANK) THEN
                SELECT FIRST 1 PRIORITY_RANK FROM QUEUE_TASK
                    WHERE STATE = :STATE AND QUEUE = :QUEUE AND PRIORITY_RANK >= :NEXT_RANK
                        AND PRIORITY_RANK <= COALESCE(:MARKED_RANK - 1, 32767)
                    ORDER BY STATE, QUEUE, PRIORITY_RANK INTO :RANK;
            FROM_TIME = TIMESTAMP '0001-01-01';
            IF (RANK IS NULL AND MARKED_RANK IS NOT NULL) THEN
            BEGIN
                RANK = MARKED_RANK;
                AFTER_ID = NULLIF(CAST(SUBSTRING(MARKS FROM 27 FOR 20) AS BIGINT), 0);
                IF (AFTER_ID IS NULL) THEN
                    FROM_TIME = DATEADD(-2 SECOND TO QUEUE_NOW());
                ELSE IF (RANK <= LAST_RANK) THEN
                BEGIN
                    FROM_TIME = DATEADD(CAST(SUBSTRING(MARKS FROM 7 FOR 20) AS BIGINT) / 10.0 MILLISECOND
                        TO TIMESTAMP '1970-01-01');
                    UNTIL_TIME = FROM_TIME;
                    SUSPEND;
                    IF (FROM_TIME < END_OF_TIME) THEN
                        FROM_TIME = DATEADD(0.1 MILLISECOND TO FROM_TIME);  -- not >, which would read all of it
                    AFTER_ID = NULL;
                END
                MARKS = SUBSTRING(MARKS FROM 47);
            END
            IF (RANK IS NULL OR RANK > LAST_RANK) THEN
                LEAVE;
            UNTIL_TIME = END_OF_TIME;
            SUSPEND;
            NEXT_RANK = RANK + 1;  -- not >, which would read all of this rank
        END
        MARKS = '';
        PASSES = PASSES - 1;
    END
    IF (RANK > LAST_RANK) THEN
        SUSPEND;
END^

-- What the record of a task has beside that of one with nothing out of the ordinary: MORE of its head, a colon, and the
-- id that its caller gave it.
PRIVATE PROCEDURE EXTRAS (ID BIGINT, IS_LARGE SMALLINT)
RETURNS (MORE VARCHAR(1200) CHARACTER SET OCTETS)
AS
    DECLARE TASK_ID QUEUE_TEXT_BYTES;
BEGIN
    TASK_ID = COALESCE((SELECT FIRST 1 N.TASK_ID FROM QUEUE_TASK T JOIN QUEUE_TASK_ID N ON N.ID = T.ID
        WHERE T.ID = :ID AND T.HAS_TASK_ID), '');
    SELECT ';' || PRIORITY || ';' || TRY_COUNT || ';' || CRASH_COUNT || ';' || SUSPECT || ';'
            || COALESCE(MAX_TRIES, '') || ';' || COALESCE(CAST(FLOOR(DATEDIFF(
                MILLISECOND FROM TIMESTAMP '1970-01-01' TO EXPIRE_TIME)) AS BIGINT), '') || ';' || :IS_LARGE || ';'
            || OCTET_LENGTH(:TASK_ID) || ';' || (IIF(HAS_HOLDS, 1, 0) + IIF(IS_STEP, 2, 0) + IIF(HAS_INPUTS, 4, 0)
                + IIF(HAS_EXTRAS, 8, 0)) || ':' || :TASK_ID
        FROM QUEUE_TASK WHERE ID = :ID INTO :MORE;
END^

-- Claims up to MOST ready tasks of one queue (or, with PARKED, parked ones of that name), rank by rank. Nothing is
-- claimed from a queue that is paused, or outside its window, and no more than its limit has room for. Tasks whose
-- names are paused are parked on the way. What owners let in comes first, and more of it when other transactions hold
-- what was ready. Returns a row for each 30,000 bytes: PACKED has records as queue/codec.py reads them, with payloads
-- of up to that size; a longer one is read later. The last row also tells
--   UNSEEN  1: it stopped early, and there may be more. What has expired is cancelled on the way, and what was inserted
--           by hand with an ID that no worker can handle is failed, but no more than 200 tasks in one claim, those
--           that are parked included
--   MISSED  1: another transaction was at an owner, or may be ending what something waits for
--   IDLES   1: nothing else is left but idle work, the tasks of the lowest priority; 2 more: the limit of the queue
--           had no room for more
--   LET_IN  1: its last task is one that an owner let in
-- With IDLE idle work may be claimed; with FROM_START sources are looked at from the start, for what was committed
-- late. A suspect comes alone in its claim; of repeated ones (SUSPECT 2) a worker has one at a time. MARKS is for
-- STRETCHES. Two cursors, since tasks of one moment are found by their ids, and others by their time.
PROCEDURE CLAIM (
    WORKER_ID BIGINT, QUEUE QUEUE_NAME, MOST INTEGER, PARKED QUEUE_TEXT,
    FROM_START SMALLINT, IDLE SMALLINT, MARKS VARCHAR(1000) CHARACTER SET OCTETS)
RETURNS (
    CLAIM_ID BIGINT, PACKED QUEUE_RECORDS, UNSEEN SMALLINT, MISSED SMALLINT, IDLES SMALLINT, LET_IN SMALLINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE GRANTED INTEGER;
    DECLARE ROOM INTEGER;
    DECLARE RULED SMALLINT;
    DECLARE AGE_MS BIGINT;
    DECLARE LIMIT_ID INTEGER;
    DECLARE WANTED SMALLINT;
    DECLARE LAST_RANK SMALLINT;
    DECLARE FEEDS SMALLINT;
    DECLARE IDS QUEUE_IDS = '';
    DECLARE ADMITTED INTEGER;
    DECLARE MISSED_ONE SMALLINT;
    DECLARE CROWDED SMALLINT = 0;
    DECLARE FED_IDLES SMALLINT = 0;
    DECLARE BY_ID SMALLINT;
    DECLARE TOOK INTEGER = 0;
    DECLARE PASSED_OVER INTEGER = 0;
    DECLARE ID BIGINT;
    DECLARE NAME QUEUE_TEXT;
    DECLARE START_TIME TIMESTAMP;
    DECLARE EXPIRE_TIME TIMESTAMP;
    DECLARE CONTENT_TYPE QUEUE_NAME;
    DECLARE PAYLOAD VARCHAR(32000) CHARACTER SET OCTETS;
    DECLARE SUSPECT SMALLINT;
    DECLARE IS_CLAIMED BOOLEAN;
    DECLARE MORE VARCHAR(1200) CHARACTER SET OCTETS;
    DECLARE ITEM QUEUE_RECORDS;
    DECLARE PART CURSOR FOR (SELECT RANK, FROM_TIME, UNTIL_TIME, AFTER_ID
        FROM STRETCHES(:QUEUE, :WANTED, :AGE_MS, :LAST_RANK, :MARKS));
    DECLARE AT_MOMENT CURSOR FOR (
        SELECT ID, NAME, START_TIME, EXPIRE_TIME, CONTENT_TYPE, PAYLOAD, SUSPECT, CLAIM_MARK FROM QUEUE_TASK
        WHERE STATE = :WANTED AND QUEUE = :QUEUE AND PRIORITY_RANK = :PART.RANK AND START_TIME = :PART.FROM_TIME
            AND ID > :PART.AFTER_ID
        ORDER BY STATE, QUEUE, PRIORITY_RANK, START_TIME, ID FOR UPDATE WITH LOCK SKIP LOCKED);
    DECLARE LATER CURSOR FOR (
        SELECT ID, NAME, START_TIME, EXPIRE_TIME, CONTENT_TYPE, PAYLOAD, SUSPECT, CLAIM_MARK FROM QUEUE_TASK
        WHERE STATE = :WANTED AND QUEUE = :QUEUE AND PRIORITY_RANK = :PART.RANK AND START_TIME >= :PART.FROM_TIME
            AND START_TIME <= :PART.UNTIL_TIME AND (:PARKED IS NULL OR (NAME = :PARKED
                AND (NOT (HAS_EXTRAS OR HAS_INPUTS) OR FBTASKS_CORE.LACKED_FEATURE(ID, :WORKER_ID) IS NULL)))
        ORDER BY STATE, QUEUE, PRIORITY_RANK, START_TIME, ID FOR UPDATE WITH LOCK SKIP LOCKED);
BEGIN
    EXECUTE PROCEDURE MAY_CLAIM(QUEUE, MOST, PARKED)
        RETURNING_VALUES GRANTED, RULED, FEEDS, AGE_MS, LIMIT_ID, MISSED;
    IF (GRANTED IS NULL) THEN
        EXIT;
    NOW_UTC = QUEUE_NOW();
    CLAIM_ID = CURRENT_TRANSACTION;  -- as unique as a sequence's next value, and writes no page of its own
    PACKED = '';
    UNSEEN = 0;
    IDLES = IIF(GRANTED = 0 AND MISSED = 0, 2, 0);
    LET_IN = 0;
    ROOM = GRANTED;
    WANTED = IIF(PARKED IS NULL, 0, 3);
    LAST_RANK = IIF(IDLE = 1 OR PARKED IS NOT NULL, 9999, 9998);
    OPEN PART;
    WHILE (ROOM > 0 OR IDS <> '') DO
    BEGIN
        IF (FEEDS IS NOT NULL) THEN
        BEGIN
            EXECUTE PROCEDURE FBTASKS_CORE.FEED(WORKER_ID, QUEUE, ROOM, FROM_START, LAST_RANK, FEEDS)
                RETURNING_VALUES IDS, ADMITTED, MISSED_ONE, CROWDED, FED_IDLES;
            MISSED = MAXVALUE(MISSED, MISSED_ONE);
            ROOM = ROOM - ADMITTED;
            FEEDS = NULL;
        END
        BY_ID = IIF(IDS = '', 0, 1);
        IF (BY_ID = 0 AND ROOM > 0) THEN
        BEGIN
            FETCH PART;
            IF (ROW_COUNT = 0 AND CROWDED = 0) THEN
                LEAVE;
            IF (ROW_COUNT = 0 OR PART.RANK > LAST_RANK) THEN
            BEGIN
                -- Other transactions hold what was ready and is left: it is no reason to leave what waits for owners.
                FEEDS = IIF(ROW_COUNT = 0, 1, NULL);
                IDLES = IIF(ROW_COUNT = 0, IDLES, 1);
                CONTINUE;
            END
            IF (PART.AFTER_ID IS NULL) THEN
                OPEN LATER;
            ELSE
                OPEN AT_MOMENT;
        END
        WHILE ((BY_ID = 0 AND ROOM > 0) OR (BY_ID = 1 AND IDS <> '')) DO
        BEGIN
            IF (BY_ID = 1) THEN
            BEGIN
                SELECT ID, NAME, START_TIME, EXPIRE_TIME, CONTENT_TYPE, PAYLOAD, SUSPECT, CLAIM_MARK,
                        STATE = 2 AND :LIMIT_ID IS NULL
                    FROM QUEUE_TASK WHERE ID = CAST(SUBSTRING(:IDS FROM 1 FOR 19) AS BIGINT)
                    INTO :ID, :NAME, :START_TIME, :EXPIRE_TIME, :CONTENT_TYPE, :PAYLOAD, :SUSPECT, :MORE, :IS_CLAIMED;
                IDS = SUBSTRING(IDS FROM 20);
            END
            ELSE IF (PART.AFTER_ID IS NULL) THEN
                FETCH LATER INTO :ID, :NAME, :START_TIME, :EXPIRE_TIME, :CONTENT_TYPE, :PAYLOAD, :SUSPECT, :MORE;
            ELSE
                FETCH AT_MOMENT INTO :ID, :NAME, :START_TIME, :EXPIRE_TIME, :CONTENT_TYPE, :PAYLOAD, :SUSPECT, :MORE;
            ID = IIF(ROW_COUNT = 0, NULL, ID);
            IF (ID IS NULL AND BY_ID = 1) THEN  -- it was merged into another one
                CONTINUE;
            IF (ID IS NULL) THEN
                LEAVE;
            IF (EXPIRE_TIME <= NOW_UTC OR ID < 1 OR (RULED = 1 AND IS_HELD_BACK(ID, NAME, PARKED) = 1)) THEN
            BEGIN
                EXECUTE PROCEDURE PASS_OVER(ID, IIF(EXPIRE_TIME <= NOW_UTC, 1, 0), IIF(PARKED IS NULL, 1, 0));
                PASSED_OVER = PASSED_OVER + 1;
                UNSEEN = IIF(PASSED_OVER >= 200 AND BY_ID = 0, 1, 0);
                ROOM = IIF(UNSEEN = 1, 0, ROOM);
            END
            ELSE IF (SUSPECT > 0 AND TOOK > 0) THEN
            BEGIN
                ROOM = 0;
                UNSEEN = 1;
            END
            ELSE IF (SUSPECT = 2 AND HAS_REPEATED(WORKER_ID)) THEN
                CONTINUE;
            ELSE
            BEGIN
                -- by its key: FEED may have made it in this statement, and a standby would not find it by a cursor
                IF (BY_ID = 0 OR NOT IS_CLAIMED) THEN
                    UPDATE QUEUE_TASK SET STATE = 2, WORKER_ID = :WORKER_ID, CLAIM_ID = :CLAIM_ID,
                        CLAIM_TIME = :NOW_UTC, IS_COUNTED = :LIMIT_ID IS NOT NULL WHERE ID = :ID;
                IF (PAYLOAD IS NULL) THEN
                    SELECT DATA FROM QUEUE_PAYLOAD WHERE ID = :ID AND OCTET_LENGTH(DATA) <= 30000 INTO :PAYLOAD;
                -- Short where nothing is out of the ordinary: that saves a quarter of the claim.
                IF (MORE IS NULL OR PAYLOAD IS NULL) THEN
                    EXECUTE PROCEDURE EXTRAS(ID, IIF(PAYLOAD IS NULL, 1, 0)) RETURNING_VALUES MORE;
                ITEM = ID || ';'
                    || CAST(10 * DATEDIFF(MILLISECOND FROM TIMESTAMP '1970-01-01' TO START_TIME) AS BIGINT) || ';'
                    || OCTET_LENGTH(NAME) || ';' || OCTET_LENGTH(CONTENT_TYPE) || ';'
                    || COALESCE(OCTET_LENGTH(PAYLOAD), 0) || MORE || CAST(NAME AS QUEUE_TEXT_BYTES)
                    || CAST(CONTENT_TYPE AS VARCHAR(63) CHARACTER SET OCTETS) || COALESCE(PAYLOAD, '');
                IF (OCTET_LENGTH(PACKED) + OCTET_LENGTH(ITEM) > 32765) THEN
                BEGIN
                    SUSPEND;
                    PACKED = '';
                END
                PACKED = PACKED || ITEM;
                TOOK = TOOK + 1;
                LET_IN = BY_ID;
                ROOM = IIF(SUSPECT > 0, 0, ROOM - 1 + BY_ID);
            END
        END
        IF (BY_ID = 0 AND PART.AFTER_ID IS NULL) THEN
            CLOSE LATER;
        ELSE IF (BY_ID = 0) THEN
            CLOSE AT_MOMENT;
    END
    IDLES = IIF(ROOM > 0, MAXVALUE(IDLES, FED_IDLES), IDLES);
    IF (LIMIT_ID IS NOT NULL AND GRANTED > 0) THEN
    BEGIN
        IDLES = IDLES + IIF(TOOK >= GRANTED AND GRANTED < MOST, 2, 0);
        EXECUTE PROCEDURE FBTASKS_HOOKS.TOOK(LIMIT_ID, TOOK, IDLES / 2);
    END
    IF (PACKED <> '' OR UNSEEN = 1 OR MISSED = 1 OR IDLES > 0) THEN
        SUSPEND;
END^

-- Cancels what expired among the next READS tasks after AFTER_ID that wait, are scheduled or parked, in any queue; up
-- to MOST. A claim does so only in its own queue, when a task's turn has come. LAST_ID is how far it looked; NULL: to
-- the end.
PROCEDURE EXPIRE (AFTER_ID BIGINT, READS INTEGER, MOST INTEGER)
RETURNS (EXPIRED INTEGER, LAST_ID BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE ID BIGINT;
    DECLARE STATE SMALLINT;
    DECLARE EXPIRE_TIME TIMESTAMP;
    DECLARE DELAYS_EXPIRY BOOLEAN;
    DECLARE SEEN INTEGER = 0;
BEGIN
    NOW_UTC = QUEUE_NOW();
    EXPIRED = 0;
    FOR SELECT ID, STATE, EXPIRE_TIME, DELAYS_EXPIRY FROM QUEUE_TASK WHERE ID > :AFTER_ID ORDER BY ID
        INTO :ID, :STATE, :EXPIRE_TIME, :DELAYS_EXPIRY DO
    BEGIN
        SEEN = SEEN + 1;
        IF (EXPIRE_TIME <= NOW_UTC AND STATE <> 2 AND (STATE <> 5 OR NOT DELAYS_EXPIRY)
            AND FBTASKS_CORE.LOCKED_STATE(ID, '01345') IS NOT NULL) THEN
        BEGIN
            EXECUTE PROCEDURE FBTASKS_CORE.CANCEL_WAITING(ID, 'expired before it began');
            EXPIRED = EXPIRED + 1;
        END
        IF (SEEN >= READS OR EXPIRED >= MOST) THEN
        BEGIN
            LAST_ID = ID;
            LEAVE;
        END
    END
    SUSPEND;
END^

-- Whether a worker that leaves when nothing is due waits for what it may not claim now in QUEUES, which are divided by
-- commas: a limit opens at a known time, or a task of that queue runs, whose end may let another one in. Not in a queue
-- that is paused.
PROCEDURE STILL_OPENS (QUEUES QUEUE_DIGITS)
RETURNS (OPENS SMALLINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE QUEUE QUEUE_NAME;
    DECLARE LIMIT_ID INTEGER;
    DECLARE HAS_ROOM SMALLINT;
    DECLARE NEXT_MS BIGINT;
    DECLARE RUNS BOOLEAN;
BEGIN
    NOW_UTC = QUEUE_NOW();
    OPENS = 0;
    FOR SELECT L.QUEUE, P.LIMIT_ID FROM FBTASKS_CORE.LISTED(:QUEUES) L LEFT JOIN QUEUE_POLICY P ON P.QUEUE = L.QUEUE
        WHERE COALESCE(P.PAUSED, 0) = 0 INTO :QUEUE, :LIMIT_ID DO
    BEGIN
        RUNS = EXISTS(SELECT 1 FROM QUEUE_TASK WHERE STATE = 2 AND QUEUE = :QUEUE ORDER BY STATE, QUEUE);
        IF (EXISTS(SELECT 1 FROM (SELECT 4 AS STATE FROM RDB$DATABASE UNION ALL SELECT 5 FROM RDB$DATABASE) S
            WHERE EXISTS(SELECT 1 FROM QUEUE_TASK T WHERE T.STATE = S.STATE AND T.QUEUE = :QUEUE AND (:RUNS OR EXISTS(
                SELECT 1 FROM QUEUE_HOLD H JOIN QUEUE_GATE G ON G.OWNER_ID = H.OWNER_ID AND G.LANE = H.LANE
                WHERE H.TASK_ID = T.ID AND H.SORT_KEY <= 9999 AND G.WAKE_TIME > :NOW_UTC))))) THEN
            OPENS = 1;
        ELSE IF (LIMIT_ID IS NOT NULL
            AND EXISTS(SELECT 1 FROM QUEUE_TASK WHERE STATE = 0 AND QUEUE = :QUEUE ORDER BY STATE, QUEUE)) THEN
        BEGIN
            EXECUTE PROCEDURE FBTASKS_HOOKS.HAS_ROOM(LIMIT_ID) RETURNING_VALUES HAS_ROOM, NEXT_MS;
            OPENS = IIF(HAS_ROOM = 0 AND (RUNS OR NEXT_MS IS NOT NULL), 1, 0);
        END
        IF (OPENS = 1) THEN
            LEAVE;
    END
END^

-- How many tasks are in QUEUES, which are divided by commas: ready, waiting before limits, and waiting for other steps.
PROCEDURE TASKS_LEFT (QUEUES QUEUE_DIGITS)
RETURNS (QUEUE QUEUE_NAME, STATE SMALLINT, TASKS BIGINT)
AS
BEGIN
    FOR SELECT L.QUEUE, S.STATE, (SELECT COUNT(*) FROM QUEUE_TASK T WHERE T.STATE = S.STATE AND T.QUEUE = L.QUEUE)
        FROM FBTASKS_CORE.LISTED(:QUEUES) L CROSS JOIN (SELECT 0 AS STATE FROM RDB$DATABASE
            UNION ALL SELECT 4 FROM RDB$DATABASE UNION ALL SELECT 5 FROM RDB$DATABASE) S
        INTO :QUEUE, :STATE, :TASKS DO
        IF (TASKS > 0) THEN
            SUSPEND;
END^

SET TERM ; ^
