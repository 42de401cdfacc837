"""`rookery serve`: from flags to a plan; keys of clients; what a server says of itself."""

import json
import stat
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rookery.cli import join, serve
from rookery.cli.main import main
from rookery.config.load import load, scenarios
from rookery.errors import ConfigError, LostError, RefusedError
from rookery.server.advertised_settings import (
    KEY,
    Notice,
    Sharing,
    config_of,
    portable,
    settings_of,
)
from rookery.server.allowed_settings import refuse_settings
from rookery.server.http.client_keys import Keys
from rookery.server.parameter_server import ParameterServer, Receipt
from rookery.server.privacy.privacy_budget import Ledger
from rookery.server.run_server import (
    Plan,
    Served,
    ServedPolicy,
    Watch,
    _ledger,
    _notice,
    pardon,
    refuse,
)
from rookery.server.serve_report import reachable
from rookery.terminal.arguments import Parser, parse

SELFPLAY = ("--set", "selfplay.opponents={past: 1.0}")

PROMISE = {
    "--target-epsilon": "8",
    "--delta": "1e-3",
    "--noise": "1",
    "--clip": "1",
    "--sample-rate": "0.5",
    "--clients": "9",
}
BUDGET = [word for pair in PROMISE.items() for word in pair]
CORRIDOR = portable(load("corridor"))


def planned(*argv: str) -> Plan:
    parser = Parser(prog="rookery serve", description=None)
    serve.add_arguments(parser)
    args = parse(parser, list(argv))
    return serve.plan_of(args, serve._config(args))


def notice(**more) -> Notice:
    told = {"round_steps": 10, "deadline_s": 30.0, "until": None, **more}
    return Notice(Sharing.GRADIENTS, settings_of(CORRIDOR), **told)


def changed(section: str, change: dict[str, Any]) -> Notice:
    settings = settings_of(CORRIDOR)
    return replace(notice(), settings={**settings, section: {**settings[section], **change}})


class TestPlan:
    def test_flags_become_a_plan(self):
        flags = {"--bind": "0.0.0.0:0", "--mode": "federated", "--aggregation": "median"}
        flags |= {"--quorum": "3", "--deadline": "5", "--rounds": "7", "--seed": "3"}
        flags |= {"--max-norm": "2.5", "--memory": "2"}
        words = [word for pair in flags.items() for word in pair]

        plan = planned("--scenario", "corridor", *words)

        assert (plan.host, plan.port) == ("0.0.0.0", 0)
        assert (plan.sharing, plan.aggregation) == (Sharing.FEDERATED, "median")
        assert (plan.quorum, plan.deadline_s, plan.until) == (3, 5.0, 7)
        assert plan.config.run.seed == 3
        assert (plan.max_norm, plan.memory_bytes) == (2.5, 2 << 30)
        assert plan.run_dir == Path("runs/corridor-server")
        assert plan.keys_file == Path("runs/corridor-server/keys.json")
        assert (plan.round_s, planned("--scenario", "corridor").round_s) == (5.0, 30.0)

    @pytest.mark.parametrize("bind", ["localhost", ":80", "a:", "a:x", "a:70000", ""])
    def test_an_address_that_is_none_is_refused(self, bind):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            serve.address(bind)

    def test_an_address_of_the_new_kind_has_brackets(self):
        assert serve.address("[::1]:80") == ("::1", 80)

    def test_all_of_a_promise_or_nothing(self):
        assert planned("--scenario", "corridor").privacy is None
        private = planned("--scenario", "corridor", "--mode", "federated", *BUDGET).privacy
        assert private is not None
        assert (private.target_epsilon, private.clients) == (8.0, 9)
        with pytest.raises(ConfigError, match=r"add --clients"):
            planned("--scenario", "corridor", *BUDGET[:-2])
        with pytest.raises(ConfigError, match=r"needs --target-epsilon.*leave --delta, --noise"):
            planned("--scenario", "corridor", *BUDGET[2:])

    def test_a_promise_about_gradients_is_refused(self):
        with pytest.raises(ConfigError, match="say --mode federated"):
            _ledger(planned("--scenario", "corridor", *BUDGET))

    @pytest.mark.parametrize(
        ("flags", "why"),
        [
            (["--mode", "federated", "--mu", "0.1"], "say --server-rule fedprox"),
            (["--server-rule", "fedprox"], "say --mode federated"),
            (["--mode", "federated", "--max-norm", "2", *BUDGET], "leave --max-norm out"),
        ],
    )
    def test_flags_that_do_not_go_together_are_refused_with_what_to_say(self, flags, why):
        with pytest.raises(ConfigError, match=why):
            refuse(planned("--scenario", "corridor", *flags))

    def test_fedprox_is_told_to_clients(self):
        flags = ("--mode", "federated", "--server-rule", "fedprox", "--mu", "0.3")
        plan = planned("--scenario", "corridor", *flags)

        refuse(plan)
        assert (plan.server_rule, plan.mu) == ("fedprox", 0.3)
        assert _notice(plan, CORRIDOR, 0.3).mu == 0.3

    @pytest.mark.parametrize(
        ("argv", "why"),
        [
            (["serve"], "no scenario was given"),
            (["serve", "--scenario", "corridor", "--mode", "swarm"], "invalid choice"),
            (["serve", "--scenario", "corridor", *SELFPLAY], "against its own past"),
            (["serve", "--scenario", "corridor", "--set", "env.normalize_obs=true"], "statistics"),
        ],
    )
    def test_what_cannot_be_served_is_refused_with_exit_2(self, argv, why, capsys):
        assert main(argv) == 2
        assert why in capsys.readouterr().err

    def test_every_mode_of_sharing_has_its_server_and_its_client(self):
        from rookery.server.run_client import PUPILS
        from rookery.server.run_server import SERVERS

        assert set(SERVERS) == set(PUPILS) == set(Sharing)

    def test_other_hosts_are_told_a_name_and_not_all_addresses(self):
        assert "0.0.0.0" not in reachable("https://0.0.0.0:80")
        assert reachable("http://localhost:80") == "http://localhost:80"


class TestKeys:
    def add(self, folder: Path, *more: str) -> int:
        argv = ["serve", "--scenario", "corridor", "--run-dir", str(folder), *more]
        return main([*argv, "--add-client", "alice"])

    def test_a_new_client_gets_a_key_file_that_only_its_owner_can_read(self, tmp_path, capsys):
        assert self.add(tmp_path, "--bind", "localhost:99") == 0

        said = capsys.readouterr().out
        key = join.read_key(tmp_path / "alice.key")
        assert f"rookery join http://localhost:99 --client alice --key-file {tmp_path}" in said
        assert key not in said
        assert Keys(tmp_path / "keys.json").get("alice") == key
        modes = {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
        assert modes == {0o600}

    def test_a_client_that_exists_keeps_its_key(self, tmp_path, capsys):
        self.add(tmp_path)
        before = join.read_key(tmp_path / "alice.key")

        assert self.add(tmp_path) == 2

        assert "--rotate" in capsys.readouterr().err
        assert join.read_key(tmp_path / "alice.key") == before
        assert Keys(tmp_path / "keys.json").get("alice") == before

    def test_with_rotate_the_key_before_is_void(self, tmp_path):
        self.add(tmp_path)
        before = join.read_key(tmp_path / "alice.key")
        assert self.add(tmp_path, "--rotate") == 0

        assert join.read_key(tmp_path / "alice.key") != before
        assert Keys(tmp_path / "keys.json").get("alice") == join.read_key(tmp_path / "alice.key")

    def test_rotate_is_for_clients_that_exist(self, tmp_path, capsys):
        assert self.add(tmp_path, "--rotate") == 2
        assert "leave --rotate out" in capsys.readouterr().err
        assert main(["serve", "--scenario", "corridor", "--rotate"]) == 2
        assert "--add-client" in capsys.readouterr().err

    def test_the_answer_can_be_read_by_programs(self, tmp_path, capsys):
        self.add(tmp_path, "--json", "--tls-cert", "c.pem")

        answer = json.loads(capsys.readouterr().out)
        assert answer["key_file"] == str(tmp_path / "alice.key")
        assert answer["join"].startswith("rookery join https://")
        assert answer["join"].endswith(" --ca c.pem")

    @pytest.mark.parametrize("name", ["../alice", "a/b", "", "-x"])
    def test_a_name_is_no_path(self, tmp_path, name):
        argv = ["serve", "--scenario", "corridor", "--run-dir", str(tmp_path)]
        if name:
            assert main([*argv, f"--add-client={name}"]) == 2
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("text", "mode", "why"),
        [
            ("k" * 40, 0o644, "chmod 600"),
            ("", 0o600, "no key"),
            ("a b", 0o600, "no key"),
            (None, 0o600, "cannot be read"),
        ],
    )
    def test_a_key_file_that_is_open_or_empty_is_refused(self, tmp_path, text, mode, why):
        path = tmp_path / "key"
        if text is not None:
            path.write_text(text)
            path.chmod(mode)

        with pytest.raises(ConfigError, match=why):
            join.read_key(path)


class TestNotice:
    @pytest.mark.parametrize("name", ["corridor", "cartpole", "ppo-cartpole", "sac-pendulum"])
    def test_settings_come_over_as_they_were(self, name):
        config = portable(load(name))
        told = Notice(Sharing.FEDERATED, settings_of(config), 10, 5.0, 7, 0.5)

        heard = Notice.heard({KEY: json.loads(json.dumps(told.told()))})

        assert heard == told
        assert settings_of(config_of(heard)) == settings_of(config)

    @pytest.mark.parametrize(
        ("section", "change"),
        [
            ("env", {"id": "subprocess:run"}),
            ("env", {"imports": ["antigravity"]}),
            ("env", {"wrappers": ["os:system"]}),
            ("env", {"wrappers": [{"os:system": {}}]}),
            ("env", {"kwargs": {"deep": [{"er": "os:system"}]}}),
            ("env", {"kwargs": {"xml_file": "/etc/passwd"}}),
            ("env", {"kwargs": {"os:system": 1}}),
            ("env", {"wrappers": [{"RecordVideo": {"video_folder": "/home/alice"}}]}),
            ("env", {"wrappers": ["TimeAwareObservation"]}),
            ("env", {"id": "../CartPole-v1"}),
            ("net", {"kwargs": {"file": "weights.pt"}}),
            ("learner", {"optimizer_kwargs": {"hook": "os:system"}}),
            ("algo", {"gamma": "/etc/passwd"}),
            ("algo", {"name": "rookery.components.custom_policy:Guest"}),
            ("net", {"custom": "rookery.engines.child_process:main"}),
        ],
    )
    def test_a_server_cannot_name_code(self, section, change):
        with pytest.raises(RefusedError, match="--scenario FILE") as refused:
            config_of(changed(section, change))
        assert refused.value.code == "code"

    @pytest.mark.parametrize(
        ("section", "change"),
        [
            ("env", {"check": True}),
            ("env", {"frame_stack": 1000}),
            ("replay", {"storage": "disk"}),
            ("replay", {"capacity": 10**9}),
            ("replay", {"batch_size": 10**7}),
            ("actor", {"num": 100}),
            ("actor", {"envs": 100_000}),
            ("actor", {"devices": ["cuda:0"]}),
            ("learner", {"device": "cuda:0"}),
            ("learner", {"threads": 64}),
            ("learner", {"compile": True}),
            ("learner", {"rendezvous": "evil.example:80"}),
            ("learner", {"made_up": 1}),
            ("algo", {"atoms": 10**8}),
            ("algo", {"made_up": 1}),
            ("algo", {"gamma": {"a": 1}}),
            ("net", {"hidden": [10**6, 10**6]}),
            ("net", {"hidden": [8] * 1000}),
        ],
    )
    def test_a_server_sets_only_listed_keys_and_no_size_above_the_clients_limit(
        self, section, change
    ):
        with pytest.raises(RefusedError, match="--scenario FILE") as refused:
            config_of(changed(section, change))
        assert refused.value.code == "settings"
        assert next(iter(change)) in str(refused.value)

    @pytest.mark.parametrize("name", ["../x", "a\x1b[2J", "", 3.5e9, "x" * 200])
    def test_a_name_that_is_none_is_refused(self, name):
        with pytest.raises(RefusedError, match="no plain name"):
            config_of(replace(notice(), settings={**settings_of(CORRIDOR), "name": name}))

    @pytest.mark.parametrize("section", ["env", "algo", "net", "replay", "actor", "learner"])
    @pytest.mark.parametrize("value", [None, [], 3])
    def test_a_section_that_is_none_is_refused(self, section, value):
        with pytest.raises(RefusedError, match="are none"):
            config_of(replace(notice(), settings={**settings_of(CORRIDOR), section: value}))

    def test_a_server_is_never_asked_for_more_than_a_packaged_scenario_by_itself(self):
        for name in scenarios():
            config = load(name)
            refuse_settings(json.loads(json.dumps(settings_of(config))))

    def test_a_server_of_an_algorithm_of_its_own_tells_it_and_clients_refuse_it(self):
        config = portable(load("corridor", overrides=["algo=user_algorithm:Rewarded"]))
        told = replace(notice(), settings=settings_of(config))

        assert told.settings["algo"]["name"] == "user_algorithm:Rewarded"
        with pytest.raises(RefusedError, match=r"user_algorithm:Rewarded.*--scenario FILE"):
            config_of(told)

    def test_an_environment_that_is_installed_here_may_be_named(self):
        config = config_of(changed("env", {"id": "Acrobot-v1", "kwargs": {"gravity": 3.7}}))

        assert (config.env.id, config.env.kwargs) == ("Acrobot-v1", {"gravity": 3.7})

    @pytest.mark.parametrize("mu", [-1.0, float("nan"), float("inf"), None, "x"])
    def test_a_hold_that_is_none_is_refused(self, mu):
        with pytest.raises(RefusedError, match="does not say what is trained"):
            Notice.heard({KEY: notice().told() | {"mu": mu}})

    @pytest.mark.parametrize("stats", [{}, {KEY: 3}, {KEY: {"sharing": "x"}}])
    def test_another_server_is_refused(self, stats):
        with pytest.raises(RefusedError, match="does not say what is trained"):
            Notice.heard(stats)


class TestServed:
    def served(self, until: int | None = None, ledger: Ledger | None = None) -> Served:
        start = {"w": np.zeros(3, np.float32)}
        server = ParameterServer(start, update_frequency=1, staleness="keep")
        server.register_worker("a")
        return Served(server, notice(until=until), ledger)

    def push(self, served: Served) -> None:
        served.push_gradients("a", {"w": np.ones(3, np.float32)})

    def test_statistics_say_what_is_trained(self):
        stats = self.served().get_server_stats()

        assert Notice.heard(stats) == notice()
        assert stats["over"] == ""

    def test_at_its_last_version_nothing_is_taken_any_more(self):
        served = self.served(until=2)
        self.push(served)
        assert served.over is None
        self.push(served)

        assert served.over == "limit"
        with pytest.raises(RefusedError) as refused:
            self.push(served)
        assert refused.value.code == "over"
        assert served.version == 2

    def test_a_client_that_repeats_its_last_update_is_told_that_it_was_accepted(self):
        served, last = self.served(until=1), {"w": np.ones(3, np.float32)}
        served.push_gradients("a", last, push_id="a-1")

        again = served.push_gradients("a", last, push_id="a-1")

        assert again == Receipt(True, "duplicate", 1)
        assert served.version == 1

    def test_however_many_push_at_once(self):
        served, refused = self.served(until=20), []

        def work() -> None:
            try:
                for _ in range(20):
                    self.push(served)
            except RefusedError as refusal:
                refused.append(refusal.code)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert served.version == 20
        assert set(refused) == {"over"}

    def test_a_client_that_sent_nan_is_believed_again_once_the_operator_says_so(
        self, tmp_path, capsys
    ):
        def started() -> ParameterServer:
            start = {"w": np.zeros(3, np.float32)}
            return ParameterServer(start, checkpoint_path=tmp_path, quarantine_after=1)

        server = started()
        server.register_worker("a")
        server.push_gradients("a", {"w": np.full(3, np.nan, np.float32)})
        server.close()
        server = started()
        with pytest.raises(RefusedError, match="--pardon a"):
            self.push(Served(server, notice(), None))  # it outlasts a restart

        pardon(server, planned("--scenario", "corridor", "--pardon=a", "--pardon=b").pardoned)

        self.push(Served(server, notice(), None))
        assert capsys.readouterr().err.splitlines() == [
            "rookery: a is pardoned",
            "rookery: b is not in quarantine",
        ]

    def test_a_budget_that_one_more_round_would_pass_is_the_end(self):
        pytest.importorskip("dp_accounting")
        ledger = Ledger(1.0, 1e-3, noise_multiplier=0.5, sample_rate=1.0, clients=9)

        assert self.served(ledger=ledger).over == "budget"

    def test_a_service_that_ended_by_itself_ends_the_command(self):
        absent: Any = SimpleNamespace(reason=None, complaints=list)
        watch = Watch(notice, self.served(), absent, absent, absent, alive=lambda: False)

        with pytest.raises(LostError, match="the same command goes on"):
            watch.until_over()

    def test_a_policy_is_saved_with_the_parameters_that_are_served(self):
        policy = ServedPolicy(CORRIDOR)
        parameters = policy.parameters()
        other = {name: array + 1 for name, array in parameters.items()}
        server = ParameterServer(other)

        content = policy.content(server.get_parameters())

        assert content.version == 0
        assert {n: a.tolist() for n, a in policy.parameters().items()} == {
            n: a.tolist() for n, a in other.items()
        }
        assert any(
            a.tolist() in [o.tolist() for o in other.values()] for a in content.weights.values()
        )
