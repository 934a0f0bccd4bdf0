-- Places of queues that hold a limited number of tasks (max_length): whoever adds a task takes one, and the end of the
-- task gives it back.
SET TERM ^ ;

PACKAGE FBTASKS_CORE^

-- Locks up to MOST rows of QUEUE_PLACE with numbers of that range, which no other transaction holds: FOUND. With
-- REMOVES they are removed.
PROCEDURE FIND_PLACES (QUEUE QUEUE_NAME, FIRST_NO INTEGER, LAST_NO INTEGER, MOST INTEGER, REMOVES SMALLINT)
RETURNS (FOUND INTEGER)
AS
    DECLARE NO_ INTEGER;
    DECLARE ROW_NO BIGINT;
    -- Not FOR SELECT, which after a conflict is run again, and then locks all of them.
    DECLARE PLACES CURSOR FOR (
        SELECT NO_, ROW_NO FROM QUEUE_PLACE WHERE QUEUE = :QUEUE AND NO_ BETWEEN :FIRST_NO AND :LAST_NO
        ORDER BY QUEUE, NO_ FOR UPDATE WITH LOCK SKIP LOCKED);
BEGIN
    FOUND = 0;
    OPEN PLACES;
    WHILE (FOUND < MOST) DO
    BEGIN
        FETCH PLACES INTO :NO_, :ROW_NO;
        IF (ROW_COUNT = 0) THEN
            LEAVE;
        IF (REMOVES = 1) THEN
            DELETE FROM QUEUE_PLACE WHERE QUEUE = :QUEUE AND NO_ = :NO_ AND ROW_NO = :ROW_NO;
        FOUND = FOUND + 1;
    END
    CLOSE PLACES;
END^

-- Pays what is owed of the places of QUEUE with free ones. OWED is 1 when some stays owed, so that no place is to be
-- taken.
PROCEDURE PAY_PLACES (QUEUE QUEUE_NAME)
RETURNS (OWED SMALLINT)
AS
    DECLARE PAID INTEGER;
    DECLARE SETTLED INTEGER;
BEGIN
    EXECUTE PROCEDURE FIND_PLACES(QUEUE, 0, 2147483647,
        (SELECT COUNT(*) FROM QUEUE_PLACE WHERE QUEUE = :QUEUE AND NO_ < 0), 1) RETURNING_VALUES PAID;
    EXECUTE PROCEDURE FIND_PLACES(QUEUE, -2147483647, -1, PAID, 1) RETURNING_VALUES SETTLED;
    WHILE (SETTLED < PAID) DO  -- another transaction has settled the rest
    BEGIN
        INSERT INTO QUEUE_PLACE (QUEUE, NO_) VALUES (:QUEUE, MOD(:PAID, 1000));
        PAID = PAID - 1;
    END
    OWED = IIF(EXISTS(SELECT 1 FROM QUEUE_PLACE WHERE QUEUE = :QUEUE AND NO_ < 0 ORDER BY QUEUE, NO_), 1, 0);
END^

-- Takes a free place of QUEUE away. TAKEN is 0 when there is none that this transaction can see and no other one
-- holds: one that was given back is not seen before that is committed, in a SNAPSHOT transaction not at all. From a
-- random number on, and then from the first one, so that those who look at once do not meet. Nothing here waits for
-- another transaction; where one is in the way nevertheless (embedded, by the lock of a page), it is looked again.
PROCEDURE PICK_PLACE (QUEUE QUEUE_NAME)
RETURNS (TAKEN SMALLINT)
AS
    DECLARE FIRST_NO INTEGER;
    DECLARE PASSES INTEGER = 0;
    DECLARE OWED SMALLINT = 0;
BEGIN
    TAKEN = 0;
    FIRST_NO = FLOOR(RAND() * 1000);
    WHILE (TAKEN = 0 AND OWED = 0 AND PASSES < 4) DO
    BEGIN
        BEGIN
            IF (EXISTS(SELECT 1 FROM QUEUE_PLACE WHERE QUEUE = :QUEUE AND NO_ < 0 ORDER BY QUEUE, NO_)) THEN
                EXECUTE PROCEDURE PAY_PLACES(QUEUE) RETURNING_VALUES OWED;
            IF (OWED = 0) THEN
                EXECUTE PROCEDURE FIND_PLACES(QUEUE, FIRST_NO, 2147483647, 1, 1) RETURNING_VALUES TAKEN;
            PASSES = PASSES + IIF(FIRST_NO = 0, 4, 1);
            WHEN GDSCODE DEADLOCK, GDSCODE UPDATE_CONFLICT, GDSCODE LOCK_CONFLICT DO
                PASSES = PASSES + 1;
        END
        FIRST_NO = 0;
    END
END^

-- Cancels the task of QUEUE that has been ready for longest, of those of the lowest priority; that gives back its
-- place. What a source has brought is not dropped, nor a call of hooks. DROPPED is 0 when there is none that no
-- other transaction holds.
PRIVATE PROCEDURE DROP_OLDEST (QUEUE QUEUE_NAME)
RETURNS (DROPPED SMALLINT)
AS
    DECLARE RANK INTEGER = -9999;
    DECLARE LAST_RANK SMALLINT;
    DECLARE ID BIGINT;
BEGIN
    DROPPED = 0;
    WHILE (RANK IS NOT NULL) DO  -- the index leads from one to the next
    BEGIN
        LAST_RANK = RANK - 1;
        RANK = 1 + (SELECT FIRST 1 PRIORITY_RANK FROM QUEUE_TASK
            WHERE STATE = 0 AND QUEUE = :QUEUE AND PRIORITY_RANK >= :RANK AND SOURCE_ID IS NULL
                AND RIGHT(NAME, 11) <> ':on_failure'
            ORDER BY STATE, QUEUE, PRIORITY_RANK, START_TIME, ID);
    END
    FOR SELECT ID FROM QUEUE_TASK
        WHERE STATE = 0 AND QUEUE = :QUEUE AND PRIORITY_RANK = :LAST_RANK AND SOURCE_ID IS NULL
            AND RIGHT(NAME, 11) <> ':on_failure'
        ORDER BY STATE, QUEUE, PRIORITY_RANK, START_TIME, ID INTO :ID DO
        IF (LOCKED_STATE(ID, '0') IS NOT NULL) THEN
        BEGIN
            EXECUTE PROCEDURE CANCEL_WAITING(ID, 'dropped: the queue is full');
            DROPPED = 1;
            LEAVE;
        END
END^

-- Takes a place for one more task of a queue with a limit, as its policy says. TAKEN is 0 when the new task is to be
-- dropped; the exception QUEUE_FULL says that it cannot be enqueued.
PROCEDURE RESERVE (
    QUEUE QUEUE_NAME, MAX_LENGTH INTEGER, WHEN_FULL QUEUE_WORD)
RETURNS (TAKEN SMALLINT)
AS
    DECLARE DROPPED SMALLINT = 1;
BEGIN
    EXECUTE PROCEDURE PICK_PLACE(QUEUE) RETURNING_VALUES TAKEN;
    WHILE (TAKEN = 0 AND DROPPED = 1 AND WHEN_FULL = 'drop_oldest') DO
    BEGIN
        EXECUTE PROCEDURE DROP_OLDEST(QUEUE) RETURNING_VALUES DROPPED;
        IF (DROPPED = 1) THEN
            EXECUTE PROCEDURE PICK_PLACE(QUEUE) RETURNING_VALUES TAKEN;
    END
    IF (TAKEN = 0 AND WHEN_FULL <> 'drop_newest') THEN
        EXCEPTION QUEUE_FULL 'the queue ' || QUEUE || ' is full: it may hold ' || MAX_LENGTH
            || TRIM(TRAILING FROM IIF(MAX_LENGTH = 1, ' task that has', ' tasks that have')) || ' not ended'
            || TRIM(TRAILING FROM IIF(WHEN_FULL = 'drop_oldest', ', and none of them waits to be dropped', ''))
            || '. Enqueue the task again when some have ended, or raise the max_length of the queue.';
END^

-- Locks up to MOST free places of a queue with a limit, so that its own transaction can take so many (FOUND), and no
-- other one can.
PROCEDURE HOLD_PLACES (QUEUE QUEUE_NAME, MOST INTEGER)
RETURNS (FOUND INTEGER)
AS
    DECLARE OWED SMALLINT;
BEGIN
    FOUND = 0;
    EXECUTE PROCEDURE PAY_PLACES(QUEUE) RETURNING_VALUES OWED;
    IF (OWED = 0) THEN
        EXECUTE PROCEDURE FIND_PLACES(QUEUE, 0, 2147483647, MOST, 0) RETURNING_VALUES FOUND;
END^

-- Gives the place of a task back that is not there any more, when its queue still has a limit.
PROCEDURE GIVE_PLACE (ID BIGINT, QUEUE QUEUE_NAME)
AS
    DECLARE MAX_LENGTH INTEGER;
    DECLARE WHEN_FULL QUEUE_WORD;
    DECLARE FED SMALLINT;
BEGIN
    SELECT MAX_LENGTH, WHEN_FULL, FED FROM QUEUE_POLICY WHERE QUEUE = :QUEUE
        INTO :MAX_LENGTH, :WHEN_FULL, :FED;
    IF (MAX_LENGTH IS NOT NULL) THEN
    BEGIN
        INSERT INTO QUEUE_PLACE (QUEUE, NO_) VALUES (:QUEUE, ABS(MOD(:ID, 1000)));
        IF (WHEN_FULL = 'wait') THEN
            POST_EVENT 'fbtasks:room:' || QUEUE;
        IF (FED = 1) THEN
            POST_EVENT 'fbtasks:queue:' || QUEUE;
    END
END^

SET TERM ; ^
