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

from rookery.cli.main import main
from rookery.cli.server import join, serve
from rookery.config.load import load, scenarios
from rookery.errors import ConfigError, LostError, RefusedError
from rookery.server.advertised_settings import (
    KEY,
    Notice,
    Sharing,
    config_of,
    portable,
    refuse_settings,
    settings_of,
)
from rookery.server.federated import FederatedParameterServer
from rookery.server.http.client_keys import Keys
from rookery.server.http.limits import Limits
from rookery.server.parameter_server import ParameterServer, Receipt
from rookery.server.privacy.privacy_budget import Ledger
from rookery.server.run_server import (
    SERVERS,
    Plan,
    ServedPolicy,
    Watch,
    _notice,
    pardon,
    refuse,
)
from rookery.server.serve_report import reachable, welcome
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


def read_key(path: Path) -> str:
    return join.read_key(path, "--key-file", cure="")


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
    def test_a_token_file_that_cannot_be_read_is_named_by_its_flag(self):
        with pytest.raises(ConfigError, match="--status-token-file nowhere"):
            planned("--scenario", "corridor", "--status-token-file", "nowhere")

    def test_flags_become_a_plan(self):
        flags = {"--bind": "0.0.0.0:0", "--mode": "federated", "--aggregation": "median"}
        flags |= {"--quorum": "3", "--deadline": "5", "--rounds": "7", "--seed": "3"}
        flags |= {"--max-norm": "2.5", "--memory": "2", "--client-ca": "ca.pem"}
        words = [word for pair in flags.items() for word in pair]

        plan = planned("--scenario", "corridor", *words)

        assert (plan.host, plan.port) == ("0.0.0.0", 0)
        assert (plan.sharing, plan.aggregation) == (Sharing.FEDERATED, "median")
        assert (plan.quorum, plan.deadline_s, plan.until) == (3, 5.0, 7)
        assert plan.config.run.seed == 3
        assert (plan.max_norm, plan.limits.memory_bytes) == (2.5, 2 << 30)
        assert plan.run_dir == Path("runs/corridor-server")
        assert (plan.client_ca, plan.known_keys) == (Path("ca.pem"), None)
        own = planned("--scenario", "corridor").known_keys
        assert own == Path("runs/corridor-server/keys.json")
        assert (plan.round_s, planned("--scenario", "corridor").round_s) == (5.0, 30.0)

    def test_the_scenario_needs_no_flag(self):
        assert planned("corridor", "--rounds", "7") == planned(
            "--scenario", "corridor", "--rounds", "7"
        )

    def test_with_a_client_ca_keys_are_asked_for_only_if_they_are_named(self):
        flags = ("--scenario", "corridor", "--client-ca", "ca.pem")

        assert planned(*flags).known_keys is None
        assert planned(*flags, "--keys", "k.json").known_keys == Path("k.json")

    def test_every_limit_has_its_flag(self):
        flags = ("--limit", "rate=20.5", "--limit", "connections=9", "--memory", "0.5")

        assert planned("--scenario", "corridor", *flags).limits == Limits(
            rate=20.5, connections=9, memory_bytes=1 << 29
        )

    @pytest.mark.parametrize(
        ("limit", "why"),
        [
            ("rats=3", "did you mean 'rate'"),
            ("rate", "no number; write rate=1.0"),
            ("burst=many", "no number; write burst=1"),
            ("rate=-1", r"rate=-1.0; .*\(--limit\)"),
        ],
    )
    def test_a_limit_that_is_none_is_refused_with_its_flag(self, limit, why):
        with pytest.raises(ConfigError, match=why) as refused:
            planned("--scenario", "corridor", "--limit", limit)

        assert "--limit" in str(refused.value)

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
            refuse(planned("--scenario", "corridor", *BUDGET))

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

    def test_too_few_clients_for_a_robust_rule_are_refused_with_the_flags(self, tmp_path, capsys):
        flags = ("--aggregation", "krum", "--quorum", "2", "--run-dir", str(tmp_path))
        assert main(["serve", "--scenario", "corridor", "--bind", "localhost:0", *flags]) == 2

        said = capsys.readouterr().err
        assert all(flag in said for flag in ("--byzantine", "--quorum", "--aggregation"))

    def test_fedprox_is_told_to_clients(self):
        flags = ("--mode", "federated", "--server-rule", "fedprox", "--mu", "0.3")
        plan = planned("--scenario", "corridor", *flags)

        refuse(plan)
        assert (plan.server_rule, plan.mu) == ("fedprox", 0.3)
        server = FederatedParameterServer({"w": np.zeros(3)}, server_rule="fedprox", mu=0.3)
        assert _notice(plan, CORRIDOR, server).mu == 0.3

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
        from rookery.server.run_client import LEARNERS
        from rookery.server.run_server import SERVERS

        assert set(SERVERS) == set(LEARNERS) == set(Sharing)

    def test_other_hosts_are_told_a_name_and_not_all_addresses(self):
        assert "0.0.0.0" not in reachable("https://0.0.0.0:80")
        assert reachable("http://localhost:80") == "http://localhost:80"


class TestKeys:
    def keys(self, action: str, folder: Path, *more: str) -> int:
        names = () if action == "list" else ("alice",)
        return main(["serve", "keys", action, *names, "--run-dir", str(folder), *more])

    def test_a_new_client_gets_a_key_file_that_only_its_owner_can_read(self, tmp_path, capsys):
        assert self.keys("add", tmp_path) == 0

        said = capsys.readouterr().out
        key = read_key(tmp_path / "alice.key")
        assert f"rookery join URL --client alice --key-file {tmp_path}" in said
        assert "URL is what `rookery serve` prints" in said
        assert key not in said
        assert Keys(tmp_path / "keys.json").get("alice") == key
        modes = {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
        assert modes == {0o600}

    def test_the_printed_address_is_that_of_the_server_which_was_started_there(
        self, tmp_path, capsys
    ):
        server = ParameterServer({"w": np.zeros(3)})
        flags = ("--scenario", "corridor", "--run-dir", str(tmp_path), "--tls-cert", "c.pem")
        welcome(planned(*flags), "https://trainer.example:99", server)

        self.keys("add", tmp_path)

        line = "rookery join https://trainer.example:99 --client alice --key-file"
        said = capsys.readouterr()
        assert line in said.out
        assert "no client has a key yet: rookery serve keys add NAME --run-dir" in said.err
        welcome(planned(*flags), "https://trainer.example:99", server)
        assert line in capsys.readouterr().err

    def test_with_certificates_the_printed_line_has_no_key(self, tmp_path, capsys):
        server = ParameterServer({"w": np.zeros(3)})
        flags = ("--scenario", "corridor", "--run-dir", str(tmp_path), "--client-ca", "ca.pem")
        welcome(planned(*flags), "https://trainer.example:99", server)

        said = capsys.readouterr().err
        assert "--client NAME --tls-cert CERTIFICATE --tls-key PRIVATE_KEY" in said
        assert "--key-file" not in said

    def test_a_client_that_exists_keeps_its_key(self, tmp_path, capsys):
        self.keys("add", tmp_path)
        before = read_key(tmp_path / "alice.key")

        assert self.keys("add", tmp_path) == 2

        assert "--rotate" in capsys.readouterr().err
        assert read_key(tmp_path / "alice.key") == before
        assert Keys(tmp_path / "keys.json").get("alice") == before

    @pytest.mark.parametrize("words", [("rotate",), ("add", "--rotate")])
    def test_with_rotate_the_key_before_is_void(self, tmp_path, words):
        self.keys("add", tmp_path)
        before = read_key(tmp_path / "alice.key")
        assert self.keys(words[0], tmp_path, *words[1:]) == 0

        assert read_key(tmp_path / "alice.key") != before
        assert Keys(tmp_path / "keys.json").get("alice") == read_key(tmp_path / "alice.key")

    @pytest.mark.parametrize("words", [("rotate",), ("add", "--rotate"), ("revoke",)])
    def test_a_key_that_is_not_there_is_named(self, tmp_path, words, capsys):
        assert self.keys(words[0], tmp_path, *words[1:]) == 2
        assert "there is no key of 'alice'" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_a_revoked_client_is_listed_no_more_and_its_key_file_is_gone(self, tmp_path, capsys):
        self.keys("add", tmp_path)
        capsys.readouterr()
        assert self.keys("list", tmp_path) == 0
        assert capsys.readouterr().out == "alice\n"

        assert self.keys("revoke", tmp_path) == 0

        assert not (tmp_path / "alice.key").exists()
        capsys.readouterr()
        assert self.keys("list", tmp_path, "--json") == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer == {"clients": [], "keys": str(tmp_path / "keys.json")}

    def test_the_answer_can_be_read_by_programs(self, tmp_path, capsys):
        self.keys("add", tmp_path, "--json")

        answer = json.loads(capsys.readouterr().out)
        assert answer["key_file"] == str(tmp_path / "alice.key")
        assert answer["join"].startswith("rookery join URL --client alice")

    def test_the_server_that_is_meant_must_be_said(self, capsys):
        assert main(["serve", "keys", "list"]) == 2
        assert "give --scenario, --run-dir or --keys" in capsys.readouterr().err
        assert main(["serve", "keys"]) == 2
        assert "ACTION" in capsys.readouterr().err

    def test_its_flags_may_stand_before_or_after_the_name(self, tmp_path, capsys):
        folder = ("--run-dir", str(tmp_path))
        assert main(["serve", "keys", "add", *folder, "alice"]) == 0
        assert main(["serve", "keys", "add", "bob", *folder]) == 0
        capsys.readouterr()

        assert main(["serve", "keys", "list", "--keys", str(tmp_path / "keys.json")]) == 0
        assert capsys.readouterr().out == "alice\nbob\n"

    def test_without_a_folder_it_is_that_of_the_scenario(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert main(["serve", "keys", "add", "alice", "--scenario", "corridor"]) == 0
        assert (tmp_path / "runs" / "corridor-server" / "alice.key").exists()

    @pytest.mark.parametrize("name", ["../alice", "a/b", "-x"])
    def test_a_name_is_no_path(self, tmp_path, name):
        assert main(["serve", "keys", "add", "--run-dir", str(tmp_path), "--", name]) == 2
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

        with pytest.raises(ConfigError, match=why) as refused:
            read_key(path)

        assert "--key-file" in str(refused.value)


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
            ("env", {"wrappers": [{"TimeLimit": {"max_episode_steps": 5}}]}),
            ("env", {"imports": ["ale_py"]}),  # as another scenario has them, and not this one
            ("net", {"custom": "rookery.games.board_network:BoardNetwork"}),
            ("env", {"wrappers": [{"TimeAwareObservation": {"flatten": True}}]}),
            ("env", {"id": "../CartPole-v1"}),
            ("net", {"kwargs": {"file": "weights.pt"}}),
            ("learner", {"optimizer_kwargs": {"hook": "os:system"}}),
            ("algo", {"gamma": "/etc/passwd"}),
            ("algo", {"name": "rookery.components.custom_policy:UserPolicy"}),
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
            ("net", {"hidden": {"a": 1}}),
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
        with pytest.raises(RefusedError, match="that are none"):
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
    def server(self, until: int | None = None, ledger: Ledger | None = None) -> ParameterServer:
        start = {"w": np.zeros(3, np.float32)}
        server = ParameterServer(start, update_frequency=1, staleness="keep")
        if ledger is not None:
            server = FederatedParameterServer(start, differential_privacy=True, ledger=ledger)
        server.register_worker("a")
        server.last_version = until
        return server

    def push(self, server: ParameterServer) -> None:
        server.push_gradients("a", {"w": np.ones(3, np.float32)})

    def test_clients_are_told_what_is_trained_and_whether_it_is_over(self):
        plan = planned("--scenario", "corridor", "--rounds", "7")
        server = self.server()

        told = json.loads(json.dumps(_notice(plan, CORRIDOR, server).told()))

        assert Notice.heard({KEY: told}) == notice(round_steps=plan.round_steps, until=7)
        assert server.get_client_stats()["over"] == ""

    @pytest.mark.parametrize("mode", Sharing)
    def test_rules_of_a_plan_reach_its_server(self, mode, tmp_path):
        flags = ("--max-norm", "2.5", "--quorum", "3", "--run-dir", str(tmp_path))
        plan = planned("--scenario", "corridor", "--mode", mode, *flags)

        server = SERVERS[mode](plan, CORRIDOR, {"w": np.zeros(3, np.float32)})
        server.close()

        assert (server.rules.max_norm, server.rules.quorum) == (2.5, 3)

    def test_at_its_last_version_nothing_is_taken_any_more(self):
        server = self.server(until=2)
        self.push(server)
        assert server.over is None
        self.push(server)

        assert server.over == server.get_server_stats()["over"] == "limit"
        with pytest.raises(RefusedError) as refused:
            self.push(server)
        assert refused.value.code == "over"
        assert server.version == 2

    def test_a_client_that_repeats_its_last_update_is_told_that_it_was_accepted(self):
        server, last = self.server(until=1), {"w": np.ones(3, np.float32)}
        server.push_gradients("a", last, push_id="a-1")

        again = server.push_gradients("a", last, push_id="a-1")

        assert again == Receipt(True, "duplicate", 1)
        assert server.version == 1

    def test_however_many_push_at_once(self):
        server, refused = self.server(until=20), []

        def work() -> None:
            try:
                for _ in range(20):
                    self.push(server)
            except RefusedError as refusal:
                refused.append(refusal.code)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.version == 20
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
            self.push(server)  # it outlasts a restart

        pardon(server, planned("--scenario", "corridor", "--pardon=a", "--pardon=b").pardoned)

        self.push(server)
        assert capsys.readouterr().err.splitlines() == [
            "rookery: a is pardoned",
            "rookery: b is not in quarantine",
        ]

    def test_a_budget_that_one_more_round_would_pass_is_the_end(self):
        pytest.importorskip("dp_accounting")
        ledger = Ledger(1.0, 1e-3, noise_multiplier=0.5, sample_rate=1.0, clients=9)

        assert self.server(ledger=ledger).over == "budget"

    def test_a_service_that_ended_by_itself_ends_the_command(self):
        absent: Any = SimpleNamespace(reason=None, complaints=list)
        watch = Watch(absent, self.server(), absent, absent, absent, alive=lambda: False)

        with pytest.raises(LostError, match="the same command goes on"):
            watch.until_over()

    def test_a_policy_is_saved_with_the_parameters_that_are_served(self):
        policy = ServedPolicy(CORRIDOR)
        parameters = policy.learner.parameters()
        other = {name: array + 1 for name, array in parameters.items()}
        server = ParameterServer(other)

        content = policy.content(server.get_parameters())

        assert content.version == 0
        assert {n: a.tolist() for n, a in policy.learner.parameters().items()} == {
            n: a.tolist() for n, a in other.items()
        }
        assert any(
            a.tolist() in [o.tolist() for o in other.values()] for a in content.weights.values()
        )
