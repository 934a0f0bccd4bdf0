-- The table of periodic tasks: see packages/schedules.sql.
SET TERM ^ ;

CREATE SEQUENCE QUEUE_SCHEDULE_SEQ^

-- One process at a time makes rows: that which has FBTASKS_UPKEEP.DEPLOY_LOCK.
CREATE TABLE QUEUE_SCHEDULE (
    ID INTEGER NOT NULL PRIMARY KEY,
    NAME QUEUE_TEXT NOT NULL,
    APP QUEUE_TEXT NOT NULL,
    TASK QUEUE_TEXT NOT NULL,
    -- One of the two says when; TZ names the zone whose wall clock CRON reads.
    CRON VARCHAR(255) CHARACTER SET ASCII,
    EVERY_MS BIGINT CHECK (EVERY_MS > 0),
    TZ QUEUE_NAME,
    -- What becomes of ticks at which no worker was there: one task for all of them, none, or one for each.
    MISSED QUEUE_WORD NOT NULL CHECK (MISSED IN ('one', 'skip', 'all')),
    QUEUE QUEUE_NAME NOT NULL,
    PRIORITY QUEUE_RANK,
    EXPIRE_MS BIGINT,
    PAUSED QUEUE_FLAG,
    CONTENT_TYPE QUEUE_NAME NOT NULL,
    PAYLOAD QUEUE_BINARY NOT NULL,
    -- The gates of the limits that its calls have to pass, as ENQUEUE_PACKED takes them; NULL: none.
    GATES QUEUE_GATES,
    -- What operators said: it counts instead of what the code says. NULL: nothing.
    SET_CRON VARCHAR(255) CHARACTER SET ASCII,
    SET_EVERY_MS BIGINT CHECK (SET_EVERY_MS > 0),
    SET_TZ QUEUE_NAME,
    SET_PAYLOAD QUEUE_BINARY,
    SET_PAUSED SMALLINT CHECK (SET_PAUSED IN (0, 1)),
    -- 1 when the code of its app has it no more.
    ORPHANED QUEUE_FLAG,
    -- Why the task of its tick could not be enqueued. It does not tick until it is resumed.
    ERROR_MSG QUEUE_MESSAGE,
    STATE VARCHAR(8) CHARACTER SET ASCII COMPUTED BY (CASE WHEN ORPHANED = 1 THEN 'orphaned'
        WHEN COALESCE(SET_PAUSED, PAUSED) = 1 THEN 'paused' WHEN ERROR_MSG IS NOT NULL THEN 'failed' ELSE 'active' END),
    NEXT_TIME TIMESTAMP,
    LAST_TIME TIMESTAMP,
    -- NEXT_TIME while it is active, else NULL: what the index of due schedules is of. Kept by QUEUE_SCHEDULE_DUE_TIME.
    DUE_TIME TIMESTAMP,
    -- Changes with all that a tick goes by, but for NEXT_TIME.
    VERSION INTEGER DEFAULT 1 NOT NULL,
    -- What the code says, as JSON, with its hash.
    DEFINITION QUEUE_LONG_TEXT,
    HASH QUEUE_HASH
)^
CREATE INDEX QUEUE_SCHEDULE_DUE ON QUEUE_SCHEDULE (DUE_TIME)^

COMMIT^

-- Keeps DUE_TIME, whichever statement changes a schedule: a procedure's, or one that was written by hand.
CREATE OR ALTER TRIGGER QUEUE_SCHEDULE_DUE_TIME FOR QUEUE_SCHEDULE ACTIVE BEFORE INSERT OR UPDATE POSITION 0
AS
BEGIN
    NEW.DUE_TIME = IIF(NEW.STATE = 'active', NEW.NEXT_TIME, NULL);
END^

SET TERM ; ^
