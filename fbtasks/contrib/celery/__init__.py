"""What existing Celery code needs: the transport of kombu and the result backend, one schema and one register."""
