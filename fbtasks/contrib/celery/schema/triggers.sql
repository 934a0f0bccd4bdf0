-- Triggers that call packages: made anew with each generation.
SET TERM ^ ;

-- Keeps what follows from a message's row, whichever statement changes it: a procedure's, or one that was written by
-- hand. That is its place in the index, its consumer, its body and the count of its queue. Consumers are told of what
-- was published or given back.
CREATE OR ALTER TRIGGER QUEUE_MSG_CHANGED FOR QUEUE_MSG ACTIVE BEFORE INSERT OR UPDATE OR DELETE POSITION 0
SQL SECURITY DEFINER
AS
    DECLARE CHANGE INTEGER = 0;
BEGIN
    IF (DELETING) THEN
    BEGIN
        IF (OLD.MESSAGE IS NULL) THEN
            DELETE FROM QUEUE_MSG_BODY WHERE ID = OLD.ID;
    END
    ELSE
    BEGIN
        IF (NEW.STATE <> 2) THEN
        BEGIN
            NEW.CONSUMER_ID = NULL;
            NEW.CLAIM_ID = NULL;
        END
        NEW.SORT_KEY = DECODE(NEW.STATE,
            1, CAST(10 * DATEDIFF(MILLISECOND FROM TIMESTAMP '1970-01-01' TO NEW.START_TIME) AS BIGINT),
            2, COALESCE(NEW.CONSUMER_ID, -1),
            (9 - MAXVALUE(MINVALUE(NEW.PRIORITY, 9), 0)) * 100000000000000000 + NEW.ID);
        IF (NEW.STATE < 2 AND (INSERTING OR OLD.STATE >= 2)) THEN
            POST_EVENT 'fbtasks:message:' || MOD(NEW.QUEUE_ID, 14);
        IF (NEW.LIMITED AND NEW.STATE = 0) THEN
            CHANGE = 1;
    END
    IF (NOT INSERTING) THEN
        IF (OLD.LIMITED AND OLD.STATE = 0) THEN
            CHANGE = CHANGE - 1;
    IF (CHANGE <> 0) THEN
        EXECUTE PROCEDURE FBTASKS_CELERY.COUNT_MESSAGES(COALESCE(NEW.QUEUE_ID, OLD.QUEUE_ID), CHANGE);
END^

SET TERM ; ^
