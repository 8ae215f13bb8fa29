"""Requests that wait until another one, their leader, has computed the prompt of both: they find it in the cache."""

from rtk.schedule.request import Request, Status


class Followers:
    """Who waits for whom. They are in no queue meanwhile."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Request]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, request: Request) -> None:
        """It waits for its leader. O(1)."""
        assert request.leader is not None, "it follows nobody"
        request.status = Status.FOLLOWING
        self._of.setdefault(request.leader, {})[request.rid] = request

    def remove(self, request: Request) -> None:
        """It ends. O(1)."""
        assert request.leader is not None, "it follows nobody"
        waiting = self._of[request.leader]
        del waiting[request.rid]
        if not waiting:
            del self._of[request.leader]

    def release(self, leader: str) -> list[Request]:
        """Those who wait for this one need not any more; in order of arrival."""
        released = list(self._of.pop(leader, {}).values())
        for request in released:
            request.status = Status.WAITING
        return released
