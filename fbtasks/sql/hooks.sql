-- The hooks: what the core (queue.sql, holds.sql, claim.sql, rescue.sql, processes.sql and triggers.sql) tells features
-- and asks them. It calls FBTASKS_HOOKS, which each migration makes from the rows of QUEUE_FEATURE: a hook calls the
-- procedure of its name in the package of each feature that has it among its HOOKS, in the order of their names. The
-- core calls a hook for tasks, and queues, that carry a flag: for others it calls none.
-- A result has a word for what several answers make: FIRST, the features are asked until one says anything but NULL,
-- and the other results are of that one; GREATEST, LEAST and SUM of all that are not NULL. A hook whose first parameter
-- is ID is of one task; a feature of another distribution hears of those that carry an extra of its own.
SET TERM ^ ;

-- Before the insert of a call that is found as a duplicate: the ID of a task that answers for it. GATES is as in
-- FBTASKS_CORE.HOLD_BACK.
HOOK ENQUEUING (
    GATES VARCHAR(320) CHARACTER SET ASCII, IS_DUE SMALLINT, PRIORITY_RANK SMALLINT, EXPIRE_TIME TIMESTAMP)
RETURNS (OTHER_ID BIGINT FIRST)^

-- Before the insert of a task into a queue with a limit on its length. TAKEN is 0 when the new task is to be dropped;
-- the exception QUEUE_FULL says that it cannot be enqueued.
HOOK RESERVE (QUEUE QUEUE_NAME, MAX_LENGTH INTEGER, WHEN_FULL VARCHAR(11) CHARACTER SET ASCII)
RETURNS (TAKEN SMALLINT FIRST)^

-- A task was enqueued that carries extras of features.
HOOK ENQUEUED (ID BIGINT)^

-- A task has ended, whichever statement ended it: succeeded (STATE 10), failed (11), cancelled (12). NULL: it was
-- deleted before it ran. Of a success the row of the history is written afterwards. IS_STEP is as in QUEUE_TASK.
HOOK ENDED (ID BIGINT, STATE SMALLINT, IS_STEP BOOLEAN)^

-- An operator puts a task back that has ended: REFUSED 1 says that it is not to be now.
HOOK REVIVING (ID BIGINT)
RETURNS (REFUSED SMALLINT FIRST)^

-- An operator has put it back.
HOOK REVIVED (ID BIGINT)^

-- The history of a task is to be forgotten: KEPT 1 says that it is still needed.
HOOK KEEPS (ID BIGINT)
RETURNS (KEPT SMALLINT FIRST)^

-- The row of the history is gone, and the task was not put back.
HOOK FORGOTTEN (ID BIGINT)^

-- Whether something that waits elsewhere may become ready in QUEUE now, and else in how many milliseconds (NULL: when
-- something happens). Asked often: nothing is written.
HOOK LOOK (QUEUE QUEUE_NAME)
RETURNS (READY SMALLINT GREATEST, NEXT_MS BIGINT LEAST)^

-- A claim of up to ROOM tasks is about to read QUEUE: what is to be ready in it is made ready. FROM_START, HELD_RANK,
-- MISSED and CROWDED are as in FBTASKS_SOURCES.FILL.
HOOK FILL (QUEUE QUEUE_NAME, ROOM INTEGER, FROM_START SMALLINT, HELD_RANK SMALLINT)
RETURNS (MISSED SMALLINT GREATEST, CROWDED SMALLINT GREATEST)^

-- A claim is about to read a queue whose tasks follow groups: those that wait for a decision get it. MISSED is 1 when
-- another transaction is at it.
HOOK DECIDE
RETURNS (MISSED SMALLINT GREATEST)^

-- The same for tasks that are held back. The claim takes each of IDS (see FBTASKS_LIMITS.FEED).
HOOK FEED (QUEUE QUEUE_NAME, ROOM INTEGER)
RETURNS (IDS QUEUE_IDS FIRST, ADMITTED INTEGER, MISSED SMALLINT)^

-- How many tasks a claim of up to MOST may take by the limit of the queue itself, and, after it, how many it TOOK (see
-- FBTASKS_LIMITS.ROOM).
HOOK ROOM (LIMIT_ID INTEGER, MOST INTEGER)
RETURNS (ROOM INTEGER FIRST, MISSED SMALLINT, PERIOD_US BIGINT, FREE_US BIGINT)^
HOOK TOOK (LIMIT_ID INTEGER, TAKEN INTEGER, WAITS SMALLINT, PERIOD_US BIGINT, FREE_US BIGINT)^

-- Whether that limit may have room now, and else in how many milliseconds (NULL: when a task ends).
HOOK HAS_ROOM (LIMIT_ID INTEGER)
RETURNS (HAS_ROOM SMALLINT FIRST, NEXT_MS BIGINT)^

-- A process that is no worker leaves the register: what it held is given back. RELEASED is how much.
HOOK PROCESS_LEFT (PROCESS_ID BIGINT)
RETURNS (RELEASED INTEGER SUM)^

SET TERM ; ^
