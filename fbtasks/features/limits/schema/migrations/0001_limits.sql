-- Tables of limits: see packages/limits.sql.
SET TERM ^ ;

CREATE DOMAIN QUEUE_LIMIT_NAME AS VARCHAR(300) CHARACTER SET UTF8 COLLATE UTF8^

CREATE TABLE QUEUE_LIMIT (
    ID INTEGER NOT NULL PRIMARY KEY,  -- of QUEUE_OWNER_SEQ: no subscription has it
    -- That of an ordered task has its name behind 'ordered:'. An index key has room for a quarter of a page: so the
    -- key is a hash of it.
    NAME QUEUE_LIMIT_NAME NOT NULL,
    NAME_HASH BINARY(32) NOT NULL,
    -- Tasks pass limits by their stages, and by their IDs: first (-1) that of a unique task, so that calls are merged
    -- before they wait for anything else; then (0) those whose place they may keep while they wait for another try,
    -- or two tasks could wait for each other; last (2) rates, to which nothing is given back, and batches.
    STAGE SMALLINT NOT NULL,
    -- Which app has defined it last.
    APP QUEUE_TEXT NOT NULL,
    -- Tasks that are in at once for each key; NULL: any number.
    AT_ONCE INTEGER CHECK (AT_ONCE > 0),
    -- Microseconds between two that begin, and how many may begin at once after a pause; NULL: as they come.
    PERIOD_US BIGINT CHECK (PERIOD_US > 0),
    BURST INTEGER CHECK (BURST > 0),
    -- 1 when tasks are let in as they were enqueued, whatever their priority, and none overtakes one that is locked.
    IN_ORDER QUEUE_FLAG,
    -- Of unique tasks: calls of one key are merged into one that has not begun ('start'), or has not ended ('end');
    -- NULL: none are.
    UNIQUE_UNTIL QUEUE_WORD CHECK (UNIQUE_UNTIL IN ('start', 'end')),
    -- 1 when the newest one is kept, and not the first; how long it then waits for a newer one, and the first one at
    -- most; and how long after it was let in others are merged into it.
    REPLACES QUEUE_FLAG,
    QUIET_MS BIGINT DEFAULT 0 NOT NULL,
    MOST_MS BIGINT DEFAULT 0 NOT NULL,
    LASTS_MS BIGINT DEFAULT 0 NOT NULL,
    -- Tasks that are let in together, when so many wait or the oldest one has waited for WAIT_MS; NULL: each by itself.
    BATCH INTEGER CHECK (BATCH > 0),
    WAIT_MS BIGINT DEFAULT 0 NOT NULL,
    -- 1 when a gate stays shut after a task that failed, until that is retried or discarded.
    STOPS QUEUE_FLAG,
    -- What operators have set in the place of what the code says.
    SET_AT_ONCE INTEGER CHECK (SET_AT_ONCE > 0),
    SET_PERIOD_US BIGINT CHECK (SET_PERIOD_US > 0),
    SET_BURST INTEGER CHECK (SET_BURST > 0),
    -- What counts of these.
    MOST_IN COMPUTED BY (COALESCE(SET_AT_ONCE, AT_ONCE, 2147483647)),
    STEP_US COMPUTED BY (COALESCE(SET_PERIOD_US, PERIOD_US, 0)),
    MOST_BURST COMPUTED BY (COALESCE(SET_BURST, BURST, 1)),
    -- 'active'; 'orphaned': the code has it no more.
    STATE QUEUE_WORD NOT NULL CHECK (STATE IN ('active', 'orphaned')),
    DEFINITION QUEUE_LONG_TEXT NOT NULL,
    HASH QUEUE_HASH NOT NULL,
    CONSTRAINT QUEUE_LIMIT_NAME UNIQUE (NAME_HASH)
)^

COMMIT^

CREATE EXCEPTION QUEUE_DUPLICATE 'a task with this key waits'^

SET TERM ; ^
