-- What becomes of what a process held when it leaves the register or is declared dead: tasks of a worker, messages of a
-- consumer.
SET TERM ^ ;

PACKAGE FBTASKS_CORE^

-- Takes back one task from a worker that is dead: a crash is counted on it with CHARGE, and at CRASH_LIMIT it is
-- failed. DONE is 0 when another transaction has it locked.
PROCEDURE TAKE_BACK (ID BIGINT, CHARGE SMALLINT, CRASH_LIMIT INTEGER, WHY QUEUE_NAME)
RETURNS (DONE SMALLINT)
AS
    DECLARE QUEUE QUEUE_NAME;
    DECLARE WORKER_ID BIGINT;
    DECLARE CRASH_COUNT INTEGER;
    DECLARE IS_COUNTED BOOLEAN;
    DECLARE REQUESTED SMALLINT;
BEGIN
    DONE = 0;
    IF (LOCKED_STATE(ID, '2') IS NULL) THEN
        EXIT;
    DONE = 1;
    UPDATE QUEUE_TASK SET STATE = 0, WORKER_ID = NULL, CLAIM_ID = NULL, CRASH_COUNT = CRASH_COUNT + :CHARGE,
        SUSPECT = MINVALUE(SUSPECT + 1, 2)
        WHERE ID = :ID RETURNING QUEUE, OLD.WORKER_ID, CRASH_COUNT, IS_COUNTED
            INTO :QUEUE, :WORKER_ID, :CRASH_COUNT, :IS_COUNTED;
    IF (IS_COUNTED) THEN
        EXECUTE PROCEDURE LEAVE_QUEUE(ID, QUEUE, 'B');
    EXECUTE PROCEDURE TAKE_CANCEL(ID) RETURNING_VALUES REQUESTED;
    IF (REQUESTED = 1) THEN
        EXECUTE PROCEDURE CANCEL_WAITING(ID, 'cancelled on request');
    ELSE IF (CHARGE > 0 AND CRASH_COUNT >= CRASH_LIMIT) THEN
        EXECUTE PROCEDURE ARCHIVE(ID, 11, NULL, 0, 'fbtasks.errors.WorkerLost',
            'its worker died while it ran (' || WHY || '; crash ' || CRASH_COUNT || ')', NULL, NULL, NULL);
    ELSE
    BEGIN
        EXECUTE PROCEDURE FBTASKS_HOOKS.TAKEN_BACK(ID, WORKER_ID, WHY);
        POST_EVENT 'fbtasks:queue:' || QUEUE;
    END
END^

-- Gives back the tasks of a worker that is dead, but for those whose rows another transaction holds at this moment:
-- KEPT. A crash is counted on a suspect only when it alone was held, or is the only repeated suspect (SUSPECT 2), so
-- that at most one is failed. None is charged after a part of what the worker held was given back before.
PROCEDURE GIVE_BACK (WORKER_ID BIGINT, PARTLY_RELEASED SMALLINT, CRASH_LIMIT INTEGER, WHY QUEUE_NAME)
RETURNS (RELEASED INTEGER, KEPT INTEGER)
AS
    DECLARE ID BIGINT;
    DECLARE IS_CHARGED SMALLINT;
    DECLARE HELD INTEGER;
    DECLARE REPEATED INTEGER;
    DECLARE DONE SMALLINT;
BEGIN
    RELEASED = 0;
    SELECT COUNT(*), SUM(IIF(SUSPECT = 2, 1, 0)) FROM QUEUE_TASK
        WHERE STATE = 2 AND WORKER_ID = :WORKER_ID INTO :HELD, :REPEATED;
    FOR SELECT ID, IIF(:PARTLY_RELEASED = 0
            AND ((SUSPECT > 0 AND :HELD = 1) OR (SUSPECT = 2 AND :REPEATED = 1)), 1, 0)
        FROM QUEUE_TASK WHERE STATE = 2 AND WORKER_ID = :WORKER_ID ORDER BY ID INTO :ID, :IS_CHARGED DO
    BEGIN
        EXECUTE PROCEDURE TAKE_BACK(ID, IS_CHARGED, CRASH_LIMIT, WHY) RETURNING_VALUES DONE;
        RELEASED = RELEASED + DONE;
    END
    KEPT = HELD - RELEASED;
END^

PACKAGE FBTASKS_WORKER^

-- Declares a process dead and gives back what it held, how much of it RELEASED tells: with GONE = 1 the caller has
-- seen that its process has ended; else see FBTASKS_CORE.VERDICT. WHY is NULL, and nothing is changed, when it lives.
-- A worker of whose tasks some were kept stays registered, for the next time.
PROCEDURE RESCUE (
    PROCESS_ID BIGINT, GONE SMALLINT, SHARE INTEGER, AWAKE_MS BIGINT, CRASH_LIMIT INTEGER)
RETURNS (RELEASED INTEGER, WHY QUEUE_NAME)
AS
    DECLARE KIND QUEUE_WORD;
    DECLARE PARTLY_RELEASED SMALLINT;
    DECLARE KEPT INTEGER = 0;
BEGIN
    RELEASED = 0;
    SELECT KIND, PARTLY_RELEASED FROM QUEUE_PROCESS WHERE ID = :PROCESS_ID WITH LOCK INTO :KIND, :PARTLY_RELEASED;
    IF (KIND IS NOT NULL AND GONE = 1) THEN
        WHY = 'its process is gone';
    ELSE IF (KIND IS NOT NULL) THEN
        EXECUTE PROCEDURE FBTASKS_CORE.VERDICT(PROCESS_ID, SHARE, AWAKE_MS) RETURNING_VALUES WHY;
    IF (WHY IS NOT NULL) THEN
    BEGIN
        IF (KIND = 'worker') THEN
            EXECUTE PROCEDURE FBTASKS_CORE.GIVE_BACK(PROCESS_ID, PARTLY_RELEASED, CRASH_LIMIT, WHY)
                RETURNING_VALUES RELEASED, KEPT;
        ELSE
            EXECUTE PROCEDURE FBTASKS_HOOKS.PROCESS_LEFT(PROCESS_ID) RETURNING_VALUES RELEASED;
        IF (KEPT = 0) THEN
            DELETE FROM QUEUE_PROCESS WHERE ID = :PROCESS_ID;
        ELSE IF (RELEASED > 0) THEN
            UPDATE QUEUE_PROCESS SET PARTLY_RELEASED = 1 WHERE ID = :PROCESS_ID;
    END
    SUSPEND;
END^

-- A process leaves. What a consumer still holds is given back, as delivered; a worker has given its tasks back before.
PROCEDURE UNREGISTER (ID BIGINT)
AS
    DECLARE RELEASED INTEGER;
BEGIN
    IF (EXISTS(SELECT 1 FROM QUEUE_PROCESS WHERE ID = :ID AND KIND = 'consumer')) THEN
        EXECUTE PROCEDURE FBTASKS_HOOKS.PROCESS_LEFT(ID) RETURNING_VALUES RELEASED;
    DELETE FROM QUEUE_PROCESS WHERE ID = :ID;
END^

-- Gives back up to MOST rows that say they run and whose worker is not registered: written by hand, or restored. Not
-- those of the caller, WORKER_ID: if it is not registered any more it lives all the same, and takes them along when
-- it registers again.
PROCEDURE ORPHANS (WORKER_ID BIGINT, MOST INTEGER)
RETURNS (RELEASED INTEGER)
AS
    DECLARE ID BIGINT;
    DECLARE DONE SMALLINT;
BEGIN
    RELEASED = 0;
    FOR SELECT T.ID FROM QUEUE_TASK T WHERE T.STATE = 2 AND T.WORKER_ID IS DISTINCT FROM :WORKER_ID
        AND (T.WORKER_ID IS NULL OR NOT EXISTS(SELECT 1 FROM QUEUE_PROCESS WHERE ID = T.WORKER_ID)) INTO :ID DO
    BEGIN
        EXECUTE PROCEDURE FBTASKS_CORE.TAKE_BACK(ID, 0, 0, '') RETURNING_VALUES DONE;
        RELEASED = RELEASED + DONE;
        IF (RELEASED >= MOST) THEN
            LEAVE;
    END
    SUSPEND;
END^

SET TERM ; ^
