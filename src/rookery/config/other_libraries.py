"""Names of settings in other libraries (SB3 and its zoo, CleanRL, RLlib), and Rookery's names.

An unknown setting that has one of these names is refused with ours (`parse.py`). Names that Rookery
has too, such as `gamma`, `batch_size` and `clip_range`, are not listed; the section that they are
in is found by the name itself. docs/names.md shows the names side by side.
"""

_RATIO = "replay.samples_per_insert = batch_size x gradient_steps / (train_freq x n_envs)"

SB3_NAMES: dict[str, str] = {
    # length, environment
    "total_timesteps": "run.env_steps",
    "n_timesteps": "run.env_steps",
    "n_envs": "actor.envs",
    "vec_env_cls": "env.vector=async (SubprocVecEnv)",
    "env_kwargs": "env.kwargs",
    "env_wrapper": "env.wrappers",
    "wrapper_class": "env.wrappers",
    "n_stack": "env.frame_stack",
    "normalize": "env.normalize_obs and env.normalize_reward",
    "norm_obs": "env.normalize_obs",
    "norm_reward": "env.normalize_reward",
    "clip_reward": "env.normalized_reward_clip",
    # network, optimizer
    "policy_kwargs": "net.hidden (net_arch), net.activation and learner.optimizer",
    "net_arch": "net.hidden",
    "activation_fn": "net.activation",
    "ortho_init": "net.init=orthogonal",
    "features_extractor_class": "net.image, or net.custom for a module of your own",
    "learning_rate": "learner.lr",
    "optimizer_class": "learner.optimizer",
    # replay
    "buffer_size": "replay.capacity",
    "train_freq": _RATIO,
    "gradient_steps": _RATIO,
    "replay_buffer_class": "replay.hindsight (HerReplayBuffer)",
    "n_sampled_goal": "replay.hindsight = n_sampled_goal / (n_sampled_goal + 1)",
    # targets, exploration
    "n_steps": "algo.n_step; for rollouts (ppo, a2c) actor.chunk = n_steps x n_envs",
    "tau": "algo.target_tau",
    "target_update_interval": "algo.target_period, in learner steps instead of env steps",
    "exploration_initial_eps": "actor.epsilon",
    "exploration_final_eps": "actor.epsilon_end",
    "exploration_fraction": "actor.epsilon_steps = exploration_fraction x run.env_steps",
    "action_noise": "algo.noise, the deviation of normal noise",
    "noise_std": "algo.noise",
    # one algorithm's
    "ent_coef": "algo.temperature (sac, tqc) or algo.ent_coef (ppo, a2c)",
    "n_critics": "algo.critics",
    "n_quantiles": "algo.quantiles",
    "top_quantiles_to_drop_per_net": "algo.dropped_quantiles",
    "n_epochs": "algo.epochs",
    "use_rms_prop": "learner.optimizer=rmsprop",
    "rms_prop_eps": "learner.optimizer_kwargs={eps: ...}",
    # evaluations, checkpoints, reports
    "eval_freq": "eval.period",
    "n_eval_episodes": "eval.episodes",
    "save_freq": "checkpoint.period",
    "tensorboard_log": "report.tensorboard",
}

CLEANRL_NAMES: dict[str, str] = {
    "env_id": "env.id",
    "num_envs": "actor.envs",
    "start_e": "actor.epsilon",
    "end_e": "actor.epsilon_end",
    "exploration_noise": "algo.noise",
    "target_network_frequency": "algo.target_period",
    "train_frequency": "replay.samples_per_insert = batch_size / train_frequency",
    "policy_frequency": "algo.policy_delay",
    "policy_noise": "algo.target_policy_noise",
    "noise_clip": "algo.target_noise_clip",
    "clip_coef": "algo.clip_range",
    "update_epochs": "algo.epochs",
    "num_steps": "actor.chunk = num_steps x num_envs",
    "policy_lr": "learner.lr",
    "q_lr": "learner.critic_lr",
    "anneal_lr": "learner.lr_decay=linear",
    "clip_vloss": "algo.clip_range_vf",
}

RLLIB_NAMES: dict[str, str] = {
    "num_env_runners": "actor.num",
    "num_envs_per_env_runner": "actor.envs",
    "gym_env_vectorize_mode": "env.vector",
    "rollout_fragment_length": "actor.chunk = rollout_fragment_length x num_envs_per_env_runner",
    "train_batch_size": "replay.batch_size",
    "train_batch_size_per_learner": "replay.batch_size",
    "minibatch_size": "replay.batch_size",
    "num_learners": "learner.replicas",
    "num_steps_sampled_before_learning_starts": "replay.learning_starts",
    "training_intensity": "replay.samples_per_insert",
    "target_network_update_freq": "algo.target_period",
    "double_q": "algo.double",
    "grad_clip": "learner.max_grad_norm",
    "clip_param": "algo.clip_range",
    "vf_loss_coeff": "algo.vf_coef",
    "entropy_coeff": "algo.ent_coef",
    "num_epochs": "algo.epochs",
    "initial_alpha": "algo.initial_temperature",
    "fcnet_hiddens": "net.hidden",
    "fcnet_activation": "net.activation",
    "framestack": "env.frame_stack",
    "evaluation_interval": "eval.period",
    "evaluation_duration": "eval.episodes",
}

NAMES_ELSEWHERE = RLLIB_NAMES | CLEANRL_NAMES | SB3_NAMES
