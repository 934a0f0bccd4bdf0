-- The newest steps first, as workflows are listed. A step is found in it as it was in the index before.
SET TERM ^ ;

CREATE DESCENDING INDEX QUEUE_LINK_LAST ON QUEUE_LINK (TO_ID)^
DROP INDEX QUEUE_LINK_TO^
COMMIT^

SET TERM ; ^
