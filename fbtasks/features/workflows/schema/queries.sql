-- What operators ask of workflows.

-- name: group_saved
SELECT MEMBERS FROM QUEUE_GROUP_SAVED WHERE ID = ? AND EXPIRE_TIME > QUEUE_NOW()
