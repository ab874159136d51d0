"""The driver: hands out shards, keeps what they send, tries again, says why not.

It holds nothing that is not on its disk already, so that its own end costs the rounds
in flight and no more.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console

from evict_profile.deadline import Deadline
from evict_profile.fleet.cluster import RayCluster, connected
from evict_profile.fleet.folder import FleetFolder, Outcome
from evict_profile.fleet.plan import FleetPair, FleetPlan, ShardJob
from evict_profile.fleet.publish import Publisher
from evict_profile.fleet.spec import Budget
from evict_profile.fleet.task import Event, ShardRequest
from evict_profile.progress import ProgressBar, progress_bar
from evict_profile.records import to_mapping

State = Literal["waiting", "running", "measured", "failed"]

TICK_S, HOME_EVERY_S = 1.0, 5.0


@dataclass
class Shard:
    """A shard on its way.

    Attributes:
        nodes: where it failed or runs, the last one last.
        spent_s: device-seconds of the tries before.
        heard: when its task said something, by the monotonic clock.
    """

    job: ShardJob
    state: State
    tries: int = 0
    nodes: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    spent_s: float = 0.0
    began: float = 0.0
    heard: float = 0.0
    words: str = ""


@dataclass
class Driver:
    """Runs a frozen plan.

    Attributes:
        fits_beside: tables are fitted while others are measured. Not on one machine,
            whose memory the fit would share.
    """

    folder: FleetFolder
    budget: Budget
    publisher: Publisher
    shown: ProgressBar
    deadline: Deadline
    fits_beside: bool = True
    shards: dict[str, Shard] = field(default_factory=dict)
    _whole: list[FleetPair] = field(default_factory=list)
    _looked: float = 0.0

    def begin(self, pairs: Sequence[FleetPair], left: Sequence[ShardJob]) -> None:
        """Take on pairs of which these shards are left; publish what is whole."""
        names = {job.name for job in left}
        for pair in pairs:
            for job in pair.jobs:
                state: State = "waiting" if job.name in names else "measured"
                self.shards[job.name] = Shard(job, state)
            self._note_if_whole(pair)

    def measure(self, cluster: RayCluster) -> None:
        """Measure what is left, until all has ended or the deadline is reached."""
        for shard in self._open():
            self._start(cluster, shard)
        while self._open() and not self.deadline.reached():
            events = cluster.events(TICK_S)
            if self.deadline.reached():
                return
            for job, event in events:
                self._take(cluster, self.shards[job.name], event)
            self._check(cluster)
            if self.fits_beside:
                self._publish()
            self._show()

    def finish(self) -> None:
        """Publish what is whole, if not interrupted."""
        while (self._whole or self.publisher.busy) and not self.deadline.reached():
            self._publish()
            time.sleep(TICK_S / 10.0)
        self._publish()

    def _publish(self) -> None:
        if not self.deadline.reached():
            for pair in self._whole:
                self.publisher.publish(pair, self._outcome(pair, ""))
            self._whole = []
        for pair, outcome in self.publisher.ended():
            self.folder.end(pair, outcome)
            what = outcome.table or f"{outcome.state}: {outcome.why}"
            self.shown.say(f"{pair.name}: {what}")

    def _of(self, pair: FleetPair) -> list[Shard]:
        return [self.shards[job.name] for job in pair.jobs]

    def _open(self) -> list[Shard]:
        states = ("waiting", "running")
        return [shard for shard in self.shards.values() if shard.state in states]

    def _start(self, cluster: RayCluster, shard: Shard) -> None:
        pair = shard.job.pair
        left_s = 60.0 * self.budget.device_minutes - shard.spent_s
        request = ShardRequest(
            to_mapping(pair.model),
            to_mapping(pair.sweep),
            shard.job.shard,
            pair.engine.python,
            pair.engine.env,
            left_s / 60.0,
            60.0 * self.budget.silence_minutes,
        )
        shard.state, shard.heard = "waiting", time.monotonic()
        shard.tries += 1
        files = self.folder.files(shard.job)
        cluster.start(shard.job, request, files, shard.nodes)

    def _take(self, cluster: RayCluster, shard: Shard, event: Event) -> None:
        shard.heard = time.monotonic()
        if event.kind == "started":
            shard.state, shard.began = "running", shard.heard
            shard.nodes.append(event.node)
            shard.hosts.append(event.host)
        if event.files:
            self.folder.keep(shard.job, event.files)
        shard.words = event.words or shard.words
        if event.kind == "ended":
            self._end(cluster, shard, event.words)

    def _end(self, cluster: RayCluster, shard: Shard, why: str) -> None:
        if shard.state == "running":
            shard.spent_s += time.monotonic() - shard.began
        if not why and not self.folder.finished(shard.job, clocks=False):
            why = f"not done in {self.budget.device_minutes:g} device-minutes"
        if not why:
            shard.state = "measured"
            self._note_if_whole(shard.job.pair)
            return
        where = f" on {shard.hosts[-1]}" if shard.hosts else ""
        spent = shard.spent_s >= 60.0 * self.budget.device_minutes
        if shard.tries >= self.budget.tries or spent:
            self._fail(shard, f"{why}{where}; tried {shard.tries} times")
            return
        self.shown.say(f"{shard.job.name}: {why}{where}; trying again")
        self._start(cluster, shard)

    def _fail(self, shard: Shard, why: str) -> None:
        shard.state = "failed"
        self.shown.say(f"{shard.job.name}: failed: {why}")
        self.folder.end(shard.job.pair, self._outcome(shard.job.pair, why))

    def _outcome(self, pair: FleetPair, why: str) -> Outcome:
        own = self._of(pair)
        hosts = dict.fromkeys(host for shard in own for host in shard.hosts)
        tries = sum(shard.tries for shard in own)
        return Outcome("failed", why, tries=tries, nodes=tuple(hosts))

    def _note_if_whole(self, pair: FleetPair) -> None:
        if all(shard.state == "measured" for shard in self._of(pair)):
            self._whole.append(pair)

    def _check(self, cluster: RayCluster) -> None:
        """End what says nothing any more, and what no node will ever take."""
        now = time.monotonic()
        for shard in self._open():
            silent_s = now - shard.heard
            minutes = self.budget.node_silence_minutes
            if shard.state == "running" and silent_s > 60.0 * minutes:
                cluster.stop(shard.job)
                self._end(cluster, shard, f"its node said nothing for {minutes:g} min")
        if now - self._looked < HOME_EVERY_S:
            return
        self._looked = now
        for shard in self._open():
            waited_s = now - shard.heard
            if shard.state == "running" or waited_s < 60.0 * self.budget.wait_minutes:
                continue
            if cluster.homes(shard.job):
                shard.heard = now
                continue
            cluster.stop(shard.job)
            self._fail(shard, f"no node offers what it asks for; {cluster.offers()}")

    def _show(self) -> None:
        left = self._open()
        running = [shard for shard in left if shard.state == "running"]
        done = len(self.shards) - len(left)
        failed = sum(shard.state == "failed" for shard in self.shards.values())
        latest = max(running, key=lambda shard: shard.heard, default=None)
        says = f"; {latest.job.name}: {latest.words}" if latest else ""
        self.shown.show(
            f"{done} of {len(self.shards)} shards ended, {failed} failed, "
            f"{len(running)} running{says}",
            done,
            len(left),
        )


def work(
    folder: FleetFolder,
    plan: FleetPlan,
    budget: Budget,
    address: str | None,
    tables: Path,
    deadline: Deadline,
    console: Console,
) -> None:
    """Continue a fleet. Ray is needed only where a shard is still to be measured."""
    due = [pair for pair in plan.pairs if not folder.is_published(pair)]
    left = [job for pair in due for job in pair.jobs if not folder.finished(job)]
    with Publisher(folder, tables) as publisher, progress_bar(console) as shown:
        driver = Driver(folder, budget, publisher, shown, deadline, bool(address))
        driver.begin(due, left)
        if left:
            resources = sorted({p.engine.resource for p in due if p.engine.resource})
            with connected(address, resources) as ray:
                driver.measure(RayCluster(ray))
        driver.finish()
