-- The hooks: what the core tells features and asks them. It calls FBTASKS_HOOKS, which each migration makes from the
-- rows of QUEUE_FEATURE: a hook calls the procedure of its name in the package of each feature that has it among its
-- HOOKS, in the order of their names. The core calls a hook for tasks, and queues, that carry a flag: for others it
-- calls none.
-- A result has a word for what several answers make: FIRST, the features are asked until one says anything but NULL,
-- and the other results are of that one; GREATEST, LEAST and SUM of all that are not NULL. A hook whose first parameter
-- is ID is of one task; a feature of another distribution hears of those that carry an extra of its own.
SET TERM ^ ;

-- Before the insert of a call that is found as a duplicate: the ID of a task that answers for it. GATES is as in
-- FBTASKS_CORE.HOLD_BACK.
HOOK ENQUEUING (
    GATES QUEUE_GATES, IS_DUE SMALLINT, PRIORITY_RANK SMALLINT, EXPIRE_TIME TIMESTAMP)
RETURNS (OTHER_ID BIGINT FIRST)^

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

-- What an owner of lanes is to QUEUE. KIND: L it lets in tasks one by one, B by batches, S it makes tasks, of
-- PRIORITY_RANK; NULL: nothing now.
HOOK OWNER (OWNER_ID INTEGER, QUEUE QUEUE_NAME)
RETURNS (KIND QUEUE_MARK FIRST, PRIORITY_RANK SMALLINT)^

-- The line before the lanes of an owner. SORT_KEY is the place in it of a task of PRIORITY_RANK (NULL: the owner lets
-- nothing in); HAS_LINE 1 says that those behind others in it wait for these; STOPS 1 that a lane stays shut after a
-- task that has failed, until that is put back or discarded.
HOOK LINE (OWNER_ID INTEGER, PRIORITY_RANK SMALLINT)
RETURNS (SORT_KEY SMALLINT FIRST, HAS_LINE SMALLINT, STOPS SMALLINT)^

-- The first owner from FIRST_ID on that has something of which it has no note.
HOOK NEXT_OWNER (FIRST_ID BIGINT)
RETURNS (OWNER_ID INTEGER LEAST)^

-- Whether an owner of KIND S may have something now, and else in how many milliseconds (NULL: when something happens).
-- With FULL_UP there is no free place in its queue. Asked often: nothing is written.
HOOK LOOK (OWNER_ID INTEGER, FROM_START SMALLINT, FULL_UP SMALLINT)
RETURNS (READY SMALLINT FIRST, NEXT_MS BIGINT)^

-- Since when the next task of an owner of KIND S waits to be made.
HOOK WAITS_SINCE (OWNER_ID INTEGER)
RETURNS (SINCE_TIME TIMESTAMP FIRST)^

-- Lets in up to ROOM tasks of an owner that a claim from QUEUE is to take: their IDS, of 19 digits, 100 at most. An
-- owner of KIND S is called with the room that is its own, and writes its tasks as claimed by WORKER_ID; of others,
-- what is ready has its part: READY_RANK, LESS_SAME and LESS_HIGHER are as in FBTASKS_LIMITS.KEPT_ROOM. NULL: the owner
-- is another feature's.
HOOK FEED (
    OWNER_ID INTEGER, QUEUE QUEUE_NAME, ROOM INTEGER, FROM_START SMALLINT, READY_RANK SMALLINT, LESS_SAME INTEGER,
    LESS_HIGHER INTEGER, WORKER_ID BIGINT)
RETURNS (IDS QUEUE_FEW_IDS FIRST, ROOM_LEFT INTEGER, MISSED SMALLINT)^

-- The same for an owner of KIND B, up to MOST tasks. Long texts that are returned cost more than what is done for one
-- task: so this is apart.
HOOK FEED_BATCHES (
    OWNER_ID INTEGER, QUEUE QUEUE_NAME, ROOM INTEGER, MOST INTEGER, READY_RANK SMALLINT, LESS_SAME INTEGER,
    LESS_HIGHER INTEGER)
RETURNS (IDS QUEUE_IDS FIRST, ROOM_LEFT INTEGER, MISSED SMALLINT)^

-- A claim is about to read a queue whose tasks follow groups: those that wait for a decision get it. MISSED is 1 when
-- another transaction is at it. Steps with inputs are run by workers that have the feature of this hook.
HOOK DECIDE
RETURNS (MISSED SMALLINT GREATEST)^

-- How many tasks a claim of up to MOST may take by the limit of the queue itself, and, after it, how many it TOOK (see
-- FBTASKS_LIMITS.ROOM).
HOOK ROOM (LIMIT_ID INTEGER, MOST INTEGER)
RETURNS (ROOM INTEGER FIRST, MISSED SMALLINT)^
HOOK TOOK (LIMIT_ID INTEGER, TAKEN INTEGER, WAITS SMALLINT)^

-- Whether that limit may have room now, and else in how many milliseconds (NULL: when a task ends).
HOOK HAS_ROOM (LIMIT_ID INTEGER)
RETURNS (HAS_ROOM SMALLINT FIRST, NEXT_MS BIGINT)^

-- A task was taken back from a worker that is dead, WHY says how that is known, and is ready again. CLAIM_TIME is still
-- that of the try which has not ended.
HOOK TAKEN_BACK (ID BIGINT, WORKER_ID BIGINT, WHY QUEUE_NAME)^

-- The database is a copy, which goes on as one of its own: numbers of transactions and connections begin anew.
HOOK ADOPTED^

-- A process that is no worker leaves the register: what it held is given back. RELEASED is how much.
HOOK PROCESS_LEFT (PROCESS_ID BIGINT)
RETURNS (RELEASED INTEGER SUM)^

SET TERM ; ^
