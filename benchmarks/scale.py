"""Sizes and rounds of all rows: full size for the page, or a small trial run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes and rounds of all rows. Bytes are UTF-8."""

    encode_bytes: int = 1_000_000
    encode_code_bytes: int = 500_000
    """The standard library has about 9 MB of code."""
    encode_rounds: int = 7
    loop_bytes: int = 256_000
    loop_sizes: tuple[int, ...] = (1_000, 16_000, 128_000)
    """Bytes of each text; the row `encode` measures texts of 1 MB."""
    loop_rounds: int = 8
    """Limited by the code of the standard library, because all texts differ. Even, because the
    sides take turns to go first, and the first still has its own tables in the CPU caches: with
    code of 128,000 bytes that is worth a fifth of the time."""
    eviction_bytes: int = 128 << 20
    """Memory to write so that all CPU caches are evicted; larger than most caches."""
    kind_bytes: int = 400_000
    kind_rounds: int = 6
    batch_many: tuple[int, int, int] = (200, 4_000, 6)
    """Texts per call, the bytes of each, and rounds, which are even as for `loop_rounds`."""
    batch_short: tuple[int, int, int] = (1_000, 200, 6)
    batch_few: tuple[int, int, int] = (4, 500, 16)
    """Many rounds, because one disturbed call changed the median of five by a fifth."""
    lengths: tuple[int, ...] = (1_000, 4_000, 10_000, 30_000, 60_000, 120_000)
    """Tokens of the conversations to which a reply is appended."""
    conversations: int = 5
    """Conversations of each length."""
    replies: int = 8
    """Replies appended to each conversation."""
    reply_bytes: int = 1_200
    open_bytes: tuple[int, int] = (1_000, 1_000_000)
    open_rounds: int = 5
    open_appends: int = 20
    seam_bytes: tuple[int, int] = (1_000, 1_000_000)
    seam_rounds: int = 5
    seam_calls: int = 4
    rollouts: int = 512
    turns: int = 32
    rollout_rounds: int = 2
    pace_rollouts: int = 128
    pace_turns: int = 8
    pace_median_s: float = 0.01
    pace_rounds: int = 2
    turns_rollouts: int = 512
    turns_alone_rollouts: int = 256
    turns_turns: int = 20
    turns_median_s: float = 0.1
    turns_rounds: int = 3
    crowd_rollouts: int = 10_240
    crowd_turns: int = 20
    crowd_median_s: float = 0.5
    stream_rows: int = 512
    stream_turns: int = 6
    stream_slots: int = 64
    stream_sample_s: float = 0.05
    stream_tool_s: float = 0.05
    stream_rounds: int = 2
    envs_at_once: int = 128
    envs_turns: int = 20
    envs_alone_turns: int = 200
    envs_busy_rollouts: int = 32
    envs_busy_turns: int = 10
    envs_busy_s: float = 0.005
    envs_processes: int = 4
    envs_rounds: int = 3
    collate_rows: int = 512
    collate_tokens: int = 8_192
    collate_rounds: int = 7
    stitch_calls: int = 128
    stitch_tokens: int = 69_000
    stitch_rounds: int = 5
    saved_rounds: int = 3
    saved_bytes: int = 10**9
    """Sessions whose requests are longer than this are left out."""
    reply_tokens: int = 1_024
    reply_rounds: int = 50
    gateway_lengths: tuple[int, ...] = (1_000, 30_000, 120_000)
    gateway_conversations: int = 9
    """Conversations per set; the first is not counted."""
    gateway_sets: int = 3
    """Sets per length: a conversation grows with each round, so later rounds need new ones."""
    gateway_rounds: int = 3
    gateway_bytes: int = 16_000
    """New bytes in each call."""
    dialect_lengths: tuple[int, ...] = (1_000, 30_000)
    load_rounds: int = 5
    recorded_rollouts: int = 64
    memory_rollouts: int = 64
    memory_tokens: int = 120_000
    image_size: tuple[int, int] = (1280, 1024)
    image_counts: tuple[int, int] = (1, 40)
    """Pictures per conversation: few, and many."""
    image_rounds: int = 7
    image_rollouts: int = 64
    image_slack_bytes: int = 256 * 2**20
    """Memory besides files and caches: tokens, temporary buffers of a picture, the allocator."""

    @classmethod
    def quick(cls) -> "Scale":
        """Return a trial size for runs of seconds, which only show that the rows work."""
        return cls(
            encode_bytes=20_000,
            encode_code_bytes=10_000,
            encode_rounds=2,
            loop_bytes=2_000,
            loop_sizes=(500, 2_000),
            loop_rounds=1,
            eviction_bytes=1 << 16,
            kind_bytes=2_000,
            kind_rounds=1,
            batch_many=(8, 500, 1),
            batch_short=(16, 100, 1),
            batch_few=(2, 200, 1),
            lengths=(500, 1_500),
            conversations=1,
            replies=2,
            open_bytes=(1_000, 10_000),
            open_rounds=2,
            open_appends=2,
            seam_bytes=(1_000, 10_000),
            seam_rounds=2,
            seam_calls=2,
            rollouts=3,
            turns=3,
            rollout_rounds=1,
            pace_rollouts=3,
            pace_turns=3,
            pace_median_s=0.001,
            pace_rounds=1,
            turns_rollouts=4,
            turns_alone_rollouts=3,
            turns_turns=3,
            turns_median_s=0.001,
            turns_rounds=1,
            crowd_rollouts=5,
            crowd_turns=3,
            crowd_median_s=0.001,
            stream_rows=8,
            stream_turns=2,
            stream_slots=8,
            stream_sample_s=0.001,
            stream_tool_s=0.001,
            stream_rounds=1,
            envs_at_once=4,
            envs_turns=2,
            envs_alone_turns=3,
            envs_busy_rollouts=2,
            envs_busy_turns=2,
            envs_busy_s=0.001,
            envs_processes=2,
            envs_rounds=1,
            collate_rows=4,
            collate_tokens=128,
            collate_rounds=2,
            image_size=(96, 64),
            image_counts=(1, 3),
            image_rounds=2,
            image_rollouts=2,
            stitch_calls=4,
            stitch_tokens=800,
            stitch_rounds=2,
            saved_rounds=1,
            saved_bytes=6_000,
            reply_tokens=16,
            reply_rounds=2,
            gateway_lengths=(500, 1_500),
            gateway_conversations=2,
            gateway_sets=2,
            gateway_rounds=1,
            gateway_bytes=1_000,
            dialect_lengths=(500, 1_500),
            load_rounds=1,
            recorded_rollouts=2,
            memory_rollouts=2,
            memory_tokens=1_000,
        )
