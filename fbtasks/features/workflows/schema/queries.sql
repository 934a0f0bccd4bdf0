-- What operators ask of workflows.

-- name: group_saved
SELECT MEMBERS FROM QUEUE_GROUP_SAVED WHERE ID = ? AND EXPIRE_TIME > QUEUE_NOW()

-- name: workflow_around
-- What a task follows ('F') and what follows it ('T', the first ones), and the group that counts it ('M'); whether each
-- is a group.
SELECT N.KIND, N.ID, EXISTS(SELECT 1 FROM QUEUE_GROUP WHERE ID = N.ID) FROM (
    SELECT 'F', FROM_ID FROM QUEUE_LINK WHERE TO_ID = ?
    UNION ALL SELECT 'M', GROUP_ID FROM QUEUE_NODE WHERE NODE_ID = ?
    UNION ALL SELECT 'T', TO_ID FROM (
        SELECT FIRST 50 TO_ID FROM QUEUE_LINK WHERE FROM_ID = ? ORDER BY FROM_ID, TO_ID)) N (KIND, ID)

-- name: workflows_newest
-- The newest workflows with a step below BEFORE_ID: of each the newest step that follows another node and is known
-- (LAST_ID), the node that it begins with (FIRST_ID), and what became of the tasks that were enqueued with LAST_ID,
-- which are counted up to COUNTED. These have consecutive numbers and one RAISE_TIME: so the links down to LOW_ID, the
-- first of them, are passed over. IS_WHOLE: nothing tells that there are others, as where a task was replaced by steps
-- that came later. All in all a number of links is followed, however long the chains are.
EXECUTE BLOCK (BEFORE_ID BIGINT = ?, MOST INTEGER = ?, COUNTED INTEGER = ?)
RETURNS (LAST_ID BIGINT, FIRST_ID BIGINT, NAME QUEUE_TEXT, RAISE_TIME TIMESTAMP, IS_WHOLE BOOLEAN,
    UNENDED INTEGER, SUCCEEDED INTEGER, FAILED INTEGER, CANCELLED INTEGER)
AS
    DECLARE LINKS INTEGER = 100000;
    DECLARE LOW_ID BIGINT;
    DECLARE NODE_ID BIGINT;
    DECLARE NODE_TIME TIMESTAMP;
    DECLARE FORMER_ID BIGINT;
BEGIN
    WHILE (BEFORE_ID IS NOT NULL AND MOST > 0 AND LINKS > 0) DO
    BEGIN
        LAST_ID = (SELECT FIRST 1 TO_ID FROM QUEUE_LINK WHERE TO_ID < :BEFORE_ID ORDER BY TO_ID DESC);
        LOW_ID = LAST_ID;
        NODE_ID = LAST_ID;
        FIRST_ID = NULL;
        RAISE_TIME = NULL;
        -- What follows a step has a higher number, unless it was replaced.
        IS_WHOLE = NOT EXISTS(SELECT 1 FROM QUEUE_LINK WHERE FROM_ID = :LAST_ID AND TO_ID < :LAST_ID);
        WHILE (NODE_ID IS NOT NULL AND LINKS > 0) DO
        BEGIN
            LINKS = LINKS - 1;
            NAME = NULL;
            NODE_TIME = NULL;
            SELECT NAME, RAISE_TIME FROM QUEUE_TASK WHERE ID = :NODE_ID INTO :NAME, :NODE_TIME;
            IF (NAME IS NULL) THEN
                SELECT NAME, RAISE_TIME FROM QUEUE_HISTORY WHERE ID = :NODE_ID INTO :NAME, :NODE_TIME;
            IF (NODE_ID = LAST_ID) THEN
                RAISE_TIME = NODE_TIME;
            IS_WHOLE = IS_WHOLE AND NODE_ID <= LAST_ID;
            IF (NODE_TIME = RAISE_TIME) THEN
                LOW_ID = MINVALUE(LOW_ID, NODE_ID);
            -- NULL: the step is not known any more. Of a group it goes on with the first member, or with another one.
            FIRST_ID = IIF(RAISE_TIME IS NULL, NULL, NODE_ID);
            NODE_ID = COALESCE((SELECT FIRST 1 FROM_ID FROM QUEUE_LINK WHERE TO_ID = :FIRST_ID),
                (SELECT FIRST 1 NODE_ID FROM QUEUE_NODE
                    WHERE GROUP_ID = :FIRST_ID AND DONE IN (0, 1, 2) AND NUMBER = 0),
                (SELECT FIRST 1 NODE_ID FROM QUEUE_NODE WHERE GROUP_ID = :FIRST_ID
                    ORDER BY GROUP_ID DESC, DONE DESC, NUMBER DESC));
        END
        BEFORE_ID = LOW_ID;
        IF (FIRST_ID <> COALESCE(FORMER_ID, 0)) THEN
        BEGIN
            FORMER_ID = FIRST_ID;
            MOST = MOST - 1;
            IS_WHOLE = IS_WHOLE AND FIRST_ID = LOW_ID;
            UNENDED = (SELECT COUNT(*) FROM (
                SELECT FIRST (:COUNTED) ID FROM QUEUE_TASK WHERE ID BETWEEN :LOW_ID AND :LAST_ID ORDER BY ID));
            SELECT COALESCE(SUM(IIF(STATE = 10, 1, 0)), 0), COALESCE(SUM(IIF(STATE = 11, 1, 0)), 0),
                    COALESCE(SUM(IIF(STATE = 12, 1, 0)), 0)
                FROM (SELECT FIRST (:COUNTED) STATE FROM QUEUE_HISTORY
                    WHERE ID BETWEEN :LOW_ID AND :LAST_ID ORDER BY ID)
                INTO :SUCCEEDED, :FAILED, :CANCELLED;
            -- Of more than COUNTED it is the last one that tells whether one of them has failed.
            FAILED = MAXVALUE(FAILED, (SELECT COUNT(*) FROM QUEUE_HISTORY WHERE ID = :LAST_ID AND STATE = 11));
            CANCELLED = MAXVALUE(CANCELLED, (SELECT COUNT(*) FROM QUEUE_HISTORY WHERE ID = :LAST_ID AND STATE = 12));
            SUSPEND;
        END
    END
END
