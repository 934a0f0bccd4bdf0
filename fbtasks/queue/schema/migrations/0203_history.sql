-- Finished tasks by page: those that ended in one transaction have one FINISH_TIME, so a page ends within them.
SET TERM ^ ;

CREATE DESCENDING INDEX QUEUE_HISTORY_PAGE ON QUEUE_HISTORY (STATE, FINISH_TIME, ID)^
DROP INDEX QUEUE_HISTORY_STATE^
COMMIT^

SET TERM ; ^
