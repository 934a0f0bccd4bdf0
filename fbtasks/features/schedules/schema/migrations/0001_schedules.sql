-- The table of periodic tasks: see packages/schedules.sql.
SET TERM ^ ;

CREATE SEQUENCE QUEUE_SCHEDULE_SEQ^

-- One process at a time makes rows: that which has FBTASKS_UPKEEP.DEPLOY_LOCK.
CREATE TABLE QUEUE_SCHEDULE (
    ID INTEGER NOT NULL PRIMARY KEY,
    NAME VARCHAR(255) CHARACTER SET UTF8 NOT NULL COLLATE UTF8,
    APP VARCHAR(255) CHARACTER SET UTF8 NOT NULL COLLATE UTF8,
    TASK VARCHAR(255) CHARACTER SET UTF8 NOT NULL COLLATE UTF8,
    -- One of the two says when; TZ names the zone whose wall clock CRON reads.
    CRON VARCHAR(255) CHARACTER SET ASCII,
    EVERY_MS BIGINT CHECK (EVERY_MS > 0),
    TZ VARCHAR(63) CHARACTER SET ASCII,
    -- What becomes of ticks at which no worker was there: one task for all of them, none, or one for each.
    MISSED VARCHAR(4) CHARACTER SET ASCII NOT NULL CHECK (MISSED IN ('one', 'skip', 'all')),
    QUEUE VARCHAR(63) CHARACTER SET ASCII NOT NULL,
    PRIORITY QUEUE_RANK,
    EXPIRE_MS BIGINT,
    PAUSED QUEUE_FLAG,
    CONTENT_TYPE VARCHAR(63) CHARACTER SET ASCII NOT NULL,
    PAYLOAD BLOB SUB_TYPE BINARY NOT NULL,
    -- The gates of the limits that its calls have to pass, as ENQUEUE_PACKED takes them; NULL: none.
    GATES VARCHAR(320) CHARACTER SET ASCII,
    -- What operators said: it counts instead of what the code says. NULL: nothing.
    SET_CRON VARCHAR(255) CHARACTER SET ASCII,
    SET_EVERY_MS BIGINT CHECK (SET_EVERY_MS > 0),
    SET_TZ VARCHAR(63) CHARACTER SET ASCII,
    SET_PAYLOAD BLOB SUB_TYPE BINARY,
    SET_PAUSED SMALLINT CHECK (SET_PAUSED IN (0, 1)),
    -- 1 when the code of its app has it no more.
    ORPHANED QUEUE_FLAG,
    -- Why the task of its tick could not be enqueued. It does not tick until it is resumed.
    ERROR_MSG VARCHAR(1000) CHARACTER SET UTF8 COLLATE UTF8,
    STATE VARCHAR(8) CHARACTER SET ASCII COMPUTED BY (CASE WHEN ORPHANED = 1 THEN 'orphaned'
        WHEN COALESCE(SET_PAUSED, PAUSED) = 1 THEN 'paused' WHEN ERROR_MSG IS NOT NULL THEN 'failed' ELSE 'active' END),
    NEXT_TIME TIMESTAMP,
    LAST_TIME TIMESTAMP,
    -- NEXT_TIME while it is active, else NULL: what the index of due schedules is of. Kept by QUEUE_SCHEDULE_DUE_TIME.
    DUE_TIME TIMESTAMP,
    -- Changes with all that a tick goes by, but for NEXT_TIME.
    VERSION INTEGER DEFAULT 1 NOT NULL,
    -- What the code says, as JSON, with its hash.
    DEFINITION BLOB SUB_TYPE TEXT CHARACTER SET UTF8 COLLATE UTF8,
    HASH CHAR(64) CHARACTER SET ASCII
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
