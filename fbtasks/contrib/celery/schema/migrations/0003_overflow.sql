-- Queues that refuse messages while they are full.
SET TERM ^ ;

-- TRUE: x-overflow is reject-publish. FALSE: the oldest message goes.
ALTER TABLE QUEUE_MSG_QUEUE ADD REJECTS BOOLEAN DEFAULT FALSE NOT NULL^
COMMIT^

SET TERM ; ^
