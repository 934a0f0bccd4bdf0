-- What becomes of a message to a queue that is full.
SET TERM ^ ;

-- It is refused, rather than that the oldest one goes: x-overflow is reject-publish.
ALTER TABLE QUEUE_MSG_QUEUE ADD REJECTS BOOLEAN DEFAULT FALSE NOT NULL^
COMMIT^

SET TERM ; ^
