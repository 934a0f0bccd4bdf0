-- What the code of an app says of its queues: limits and windows (fbtasks/features/queues/definition.py). Written by
-- workers when they start, by `fbtasks migrate -A`, and for a queue of which nothing is known yet by the first call
-- into it.
SET TERM ^ ;

PACKAGE FBTASKS_QUEUES^

-- Writes what an app says of a queue. DONE is 0 when that is known already, 2 when it is not taken over: with
-- ONLY_NEW another definition stays. The row is locked from here on; its places and shifts are to be set in the same
-- transaction.
PROCEDURE SET_POLICY (
    QUEUE QUEUE_NAME, APP QUEUE_TEXT, MAX_LENGTH INTEGER,
    WHEN_FULL QUEUE_WORD, WINDOWED SMALLINT, AGE_MS BIGINT,
    DEFINITION QUEUE_LONG_TEXT, HASH QUEUE_HASH, ONLY_NEW SMALLINT)
RETURNS (DONE SMALLINT)
AS
    DECLARE KNOWN SMALLINT = 0;
    DECLARE KNOWN_HASH QUEUE_HASH;
BEGIN
    SELECT 1, HASH FROM QUEUE_POLICY WHERE QUEUE = :QUEUE INTO :KNOWN, :KNOWN_HASH;
    DONE = IIF(KNOWN_HASH = HASH, 0, IIF(KNOWN_HASH IS NOT NULL AND ONLY_NEW = 1, 2, 1));
    IF (DONE = 1 AND KNOWN = 1) THEN
        UPDATE QUEUE_POLICY SET APP = :APP, MAX_LENGTH = :MAX_LENGTH, WHEN_FULL = :WHEN_FULL, WINDOWED = :WINDOWED,
            AGE_MS = :AGE_MS, DEFINITION = :DEFINITION, HASH = :HASH WHERE QUEUE = :QUEUE;
    ELSE IF (DONE = 1) THEN
        INSERT INTO QUEUE_POLICY (QUEUE, APP, MAX_LENGTH, WHEN_FULL, WINDOWED, AGE_MS, DEFINITION, HASH)
            VALUES (:QUEUE, :APP, :MAX_LENGTH, :WHEN_FULL, :WINDOWED, :AGE_MS, :DEFINITION, :HASH);
    SUSPEND;
END^

-- Locks the row of a queue, so that one transaction at a time sets its places. What it counts then is to be read by
-- another statement, which sees all that others have committed before.
PROCEDURE LOCK_POLICY (QUEUE QUEUE_NAME)
RETURNS (DONE SMALLINT)
AS
BEGIN
    UPDATE QUEUE_POLICY SET HASH = HASH WHERE QUEUE = :QUEUE;
    DONE = ROW_COUNT;
    SUSPEND;
END^

-- Makes as many places as the limit of a queue has room for beside the tasks that have not ended, whether they have
-- one or are from before the limit. In any snapshot of the database, free places, less those that are owed, and these
-- tasks add up to the limit: a transaction that takes a place adds a task, and one that ends a task gives a place
-- back. CHANGED is by how many they did not.
PROCEDURE SET_PLACES (QUEUE QUEUE_NAME)
RETURNS (CHANGED INTEGER)
AS
    DECLARE MAX_LENGTH INTEGER;
    DECLARE LEFT_OVER INTEGER = 0;
    DECLARE REMOVED INTEGER = 0;
    DECLARE OWED SMALLINT;
BEGIN
    CHANGED = 0;
    SELECT MAX_LENGTH FROM QUEUE_POLICY WHERE QUEUE = :QUEUE INTO :MAX_LENGTH;
    IF (MAX_LENGTH IS NULL) THEN
    BEGIN
        EXECUTE PROCEDURE FBTASKS_CORE.FIND_PLACES(QUEUE, -2147483647, 2147483647, 2147483647, 1)
            RETURNING_VALUES REMOVED;
        CHANGED = -REMOVED;
    END
    ELSE
    BEGIN
        SELECT :MAX_LENGTH - COALESCE(SUM(IIF(NO_ < 0, -1, 1)), 0) - FBTASKS_VIEW.LIVE_IN(:QUEUE)
            FROM QUEUE_PLACE WHERE QUEUE = :QUEUE INTO :CHANGED;
        LEFT_OVER = CHANGED;
        EXECUTE PROCEDURE FBTASKS_CORE.PAY_PLACES(QUEUE) RETURNING_VALUES OWED;
        IF (LEFT_OVER > 0) THEN
            EXECUTE PROCEDURE FBTASKS_CORE.FIND_PLACES(QUEUE, -2147483647, -1, LEFT_OVER, 1) RETURNING_VALUES REMOVED;
        ELSE IF (LEFT_OVER < 0) THEN
            EXECUTE PROCEDURE FBTASKS_CORE.FIND_PLACES(QUEUE, 0, 2147483647, -LEFT_OVER, 1) RETURNING_VALUES REMOVED;
        LEFT_OVER = LEFT_OVER - SIGN(LEFT_OVER) * REMOVED;
    END
    WHILE (LEFT_OVER <> 0) DO
    BEGIN
        INSERT INTO QUEUE_PLACE (QUEUE, NO_) VALUES (:QUEUE, IIF(:LEFT_OVER < 0, -1, MOD(:LEFT_OVER, 1000)));
        LEFT_OVER = LEFT_OVER - SIGN(LEFT_OVER);
    END
    IF (CHANGED > 0) THEN
        POST_EVENT 'fbtasks:room:' || QUEUE;
    SUSPEND;
END^

-- Writes when a queue is open, in place of what was written before: SHIFTS has two times for each, in milliseconds
-- since 1970, of 15 digits.
PROCEDURE SET_SHIFTS (QUEUE QUEUE_NAME, SHIFTS QUEUE_DIGITS)
AS
    DECLARE AT_BYTE INTEGER = 1;
    DECLARE EPOCH TIMESTAMP = TIMESTAMP '1970-01-01';
BEGIN
    DELETE FROM QUEUE_SHIFT WHERE QUEUE = :QUEUE;
    WHILE (AT_BYTE < CHAR_LENGTH(SHIFTS)) DO
    BEGIN
        INSERT INTO QUEUE_SHIFT (QUEUE, OPEN_TIME, CLOSE_TIME)
            VALUES (:QUEUE,
                DATEADD(CAST(SUBSTRING(:SHIFTS FROM :AT_BYTE FOR 15) AS BIGINT) MILLISECOND TO :EPOCH),
                DATEADD(CAST(SUBSTRING(:SHIFTS FROM :AT_BYTE + 15 FOR 15) AS BIGINT) MILLISECOND TO :EPOCH));
        AT_BYTE = AT_BYTE + 30;
    END
    POST_EVENT 'fbtasks:queue:' || QUEUE;
END^

SET TERM ; ^
