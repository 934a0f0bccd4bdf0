-- What those may ask who see all tasks and change none.
SET TERM ^ ;

PACKAGE FBTASKS_VIEW^

-- The queues and states of which there is a task: the index leads from one to the next.
PROCEDURE STATES
RETURNS (QUEUE QUEUE_NAME, STATE SMALLINT)
AS
    DECLARE NEXT_QUEUE VARCHAR(64) CHARACTER SET ASCII;
BEGIN
    STATE = 0;
    WHILE (STATE <= 5) DO
    BEGIN
        NEXT_QUEUE = '';
        WHILE (NEXT_QUEUE IS NOT NULL) DO
        BEGIN
            QUEUE = (SELECT FIRST 1 QUEUE FROM QUEUE_TASK WHERE STATE = :STATE AND QUEUE >= :NEXT_QUEUE
                ORDER BY STATE, QUEUE, PRIORITY_RANK, START_TIME, ID);
            NEXT_QUEUE = QUEUE || '!';  -- the first character that a name may have: with > all of this one were read
            IF (QUEUE IS NOT NULL) THEN
                SUSPEND;
        END
        STATE = STATE + 1;
    END
END^

-- How many tasks of a queue have not ended: state by state. A statement with STATE IN (...) that was prepared while the
-- table was small walks the index from one state to the next, over the tasks of all queues.
FUNCTION LIVE_IN (QUEUE QUEUE_NAME) RETURNS BIGINT
AS
    DECLARE STATE SMALLINT = 0;
    DECLARE TASKS BIGINT = 0;
BEGIN
    WHILE (STATE <= 5) DO
    BEGIN
        TASKS = TASKS + (SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = :STATE AND QUEUE = :QUEUE);
        STATE = STATE + 1;
    END
    RETURN TASKS;
END^

SET TERM ; ^
