-- What tasks say of themselves while they run. A row belongs to one claim, and says nothing any more when that has
-- ended: nothing has to be done then, and maintenance deletes it. At the end: how the room of deleted rows, in the
-- tables of all files, is used again.
SET TERM ^ ;

PACKAGE FBTASKS_PROGRESS^

-- Notes how far a task has come, unless its claim has ended, or another transaction holds the row: outcomes are
-- written with it, which nothing of this is to hinder.
PROCEDURE PUT_PROGRESS (ID BIGINT, CLAIM_ID BIGINT, WORD VARCHAR(50) CHARACTER SET UTF8 COLLATE UTF8,
    META QUEUE_MSG_DATA)
AS
BEGIN
    IF (EXISTS(SELECT 1 FROM QUEUE_TASK WHERE ID = :ID AND CLAIM_ID = :CLAIM_ID AND STATE = 2)) THEN
        UPDATE OR INSERT INTO QUEUE_PROGRESS (ID, CLAIM_ID, WORD, META, CHANGE_TIME)
            VALUES (:ID, :CLAIM_ID, :WORD, :META, QUEUE_NOW());
    WHEN GDSCODE DEADLOCK, GDSCODE UPDATE_CONFLICT, GDSCODE LOCK_CONFLICT DO
        EXIT;
END^

-- Deletes up to MOST rows of claims that have ended.
PROCEDURE PRUNE_PROGRESS (MOST INTEGER)
RETURNS (PRUNED INTEGER)
AS
BEGIN
    DELETE FROM QUEUE_PROGRESS P
        WHERE NOT EXISTS(SELECT 1 FROM QUEUE_TASK WHERE ID = P.ID AND CLAIM_ID = P.CLAIM_ID AND STATE = 2)
        ROWS :MOST;
    PRUNED = ROW_COUNT;
    SUSPEND;
END^

PACKAGE FBTASKS_PROGRESS_API^

-- What a task that runs has said last. No row for one that does not run, has said nothing, or is not known to the
-- caller.
PROCEDURE READ_PROGRESS (ID BIGINT)
RETURNS (WORD VARCHAR(50) CHARACTER SET UTF8 COLLATE UTF8, META QUEUE_MSG_DATA)
AS
    DECLARE MERGED_BY QUEUE_USER;
    DECLARE ENQUEUED_BY QUEUE_USER;
BEGIN
    EXECUTE PROCEDURE FBTASKS_CORE.ANSWERING(ID) RETURNING_VALUES ID, MERGED_BY;
    SELECT P.WORD, P.META, T.ENQUEUED_BY FROM QUEUE_PROGRESS P
        JOIN QUEUE_TASK T ON T.ID = P.ID AND T.CLAIM_ID = P.CLAIM_ID AND T.STATE = 2
        WHERE P.ID = :ID INTO :WORD, :META, :ENQUEUED_BY;
    IF (WORD IS NOT NULL AND FBTASKS_CORE.SEES(COALESCE(MERGED_BY, ENQUEUED_BY))) THEN
        SUSPEND;
END^

SET TERM ; ^
