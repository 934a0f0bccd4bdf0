-- Queues and names of tasks that are paused, and what tells the definition of a queue from others.
SET TERM ^ ;

PACKAGE FBTASKS_PRODUCER^

-- What tells the definition of a queue from others, for producers, which read no table. NULL: no app has said
-- anything of it.
PROCEDURE POLICY_HASH (QUEUE QUEUE_NAME)
RETURNS (HASH QUEUE_HASH)
AS
BEGIN
    SELECT HASH FROM QUEUE_POLICY WHERE QUEUE = :QUEUE INTO :HASH;
    SUSPEND;
END^

PACKAGE FBTASKS_OPERATOR^

-- Has nothing claimed from QUEUE with PAUSED 1, and goes on with 0. DONE is 0 when it is so already.
PROCEDURE PAUSE (QUEUE QUEUE_NAME, PAUSED SMALLINT)
RETURNS (DONE SMALLINT)
AS
BEGIN
    DONE = IIF(COALESCE((SELECT PAUSED FROM QUEUE_POLICY WHERE QUEUE = :QUEUE), 0) = PAUSED, 0, 1);
    IF (DONE = 1) THEN
    BEGIN
        UPDATE OR INSERT INTO QUEUE_POLICY (QUEUE, PAUSED) VALUES (:QUEUE, :PAUSED) MATCHING (QUEUE);
        IF (PAUSED = 0) THEN
            EXECUTE PROCEDURE FBTASKS_CORE.QUEUE_GOES_ON(QUEUE);
        POST_EVENT 'fbtasks:queue:' || QUEUE;
    END
    SUSPEND;
END^

-- Has tasks of a name parked when their turn comes, with PAUSED 1. With 0 they are not any more, and UNPARK is to
-- bring back those that were. DONE is 0 when it is so already.
PROCEDURE PAUSE_NAME (NAME QUEUE_TEXT, PAUSED SMALLINT)
RETURNS (DONE SMALLINT)
AS
BEGIN
    UPDATE QUEUE_RULE SET PAUSED = :PAUSED WHERE NAME = :NAME AND PAUSED <> :PAUSED;
    DONE = SIGN(ROW_COUNT);
    IF (PAUSED = 1 AND DONE = 0 AND NOT EXISTS(SELECT 1 FROM QUEUE_RULE WHERE NAME = :NAME)) THEN
    BEGIN
        INSERT INTO QUEUE_RULE (NAME, PAUSED) VALUES (:NAME, 1);
        DONE = 1;
    END
    SUSPEND;
END^

-- Parks up to MOST ready tasks of a name that is paused, of those behind AFTER_ID: before their turn, so that no
-- claim has to. LAST_ID is the last one; NULL: there are no more.
PROCEDURE PARK (NAME QUEUE_TEXT, AFTER_ID BIGINT, MOST INTEGER)
RETURNS (LAST_ID BIGINT)
AS
    DECLARE ID BIGINT;
    DECLARE PARKED INTEGER = 0;
BEGIN
    FOR SELECT ID FROM QUEUE_TASK WHERE ID > :AFTER_ID AND STATE = 0 AND NAME = :NAME
            AND EXISTS(SELECT 1 FROM QUEUE_RULE WHERE NAME = :NAME AND PAUSED = 1)
        ORDER BY ID INTO :ID DO
    BEGIN
        IF (FBTASKS_CORE.LOCKED_STATE(ID, '0') IS NULL) THEN
            CONTINUE;
        EXECUTE PROCEDURE FBTASKS_CORE.PUT_ASIDE(ID, 1);
        PARKED = PARKED + 1;
        IF (PARKED >= MOST) THEN
        BEGIN
            LAST_ID = ID;
            LEAVE;
        END
    END
    SUSPEND;
END^

-- Puts up to MOST parked tasks of a name back into their queues, unless it is paused. DONE is how many. When there
-- are none left, it is forgotten that the name was paused.
PROCEDURE UNPARK (NAME QUEUE_TEXT, MOST INTEGER)
RETURNS (DONE INTEGER)
AS
    DECLARE ID BIGINT;
BEGIN
    DONE = 0;
    FOR SELECT ID FROM QUEUE_TASK WHERE STATE = 3 AND NAME = :NAME
            AND NOT EXISTS(SELECT 1 FROM QUEUE_RULE WHERE NAME = :NAME AND PAUSED = 1)
        ORDER BY STATE, QUEUE, PRIORITY_RANK, START_TIME, ID INTO :ID DO
    BEGIN
        IF (FBTASKS_CORE.LOCKED_STATE(ID, '3') IS NULL) THEN
            CONTINUE;
        EXECUTE PROCEDURE FBTASKS_CORE.PUT_ASIDE(ID, 0);
        DONE = DONE + 1;
        IF (DONE >= MOST) THEN
            LEAVE;
    END
    IF (DONE = 0) THEN
        DELETE FROM QUEUE_RULE WHERE NAME = :NAME AND PAUSED = 0;
    SUSPEND;
END^

SET TERM ; ^
