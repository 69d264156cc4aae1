/* Pods placed one by one: commit, lease, confirm, release, and the fence of a lost worker.
 *
 * One dispatcher, two workers, two shards, three pods. A resolver keeps nothing between two scripts here, so
 * the two of them are the ways a call can take: one runs and is answered, and a copy of it, which a frozen
 * resolver or a repeated command carries out, may run at any moment before or after.
 *
 * Faults: COPIES late copies of any call, LOSSES workers that are declared lost while they go on (one that
 * died is the same with fewer steps), EVICTIONS and DELETIONS of bound or travelling pods, and EXPIRIES leases
 * that end while somebody still counts on them (others end at any moment). Pods are given to workers again
 * RETRIES times. Every run comes to an end, so the check of quiet states is one of liveness: whatever
 * happens, nothing is left.
 *
 * Workers are alike, and so are pods: the worker that is lost is called 0, the pod that is evicted is called
 * 0, and the one that is deleted 0 or 1. This loses no run. */

#ifndef COPIES
#define COPIES 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef EVICTIONS
#define EVICTIONS 1
#endif
#ifndef DELETIONS
#define DELETIONS 1
#endif
#ifndef EXPIRIES
#define EXPIRIES 1
#endif
#ifndef RETRIES
#define RETRIES 2
#endif

#define SHARDS 2
#define WORKERS 2
#define PODS 3
#define EPOCH 1  /* of both workers, until a fence grants the next */
#define TERM 1

/* --- the dispatcher's table of pods --- */
#define QUEUED 0
#define SCHEDULING 1
#define BOUND 2
#define UNSURE 3    /* its lease may have ended before the confirmation: to be looked up */
#define RELEASING 4 /* evicted or deleted while bound */
#define DELETED 5
byte phase[PODS];
byte with_worker[PODS];
byte seq_of[PODS]; /* of the reservation that the dispatcher knows */
bit deleted[PODS];

/* What look-ups found so far, and how many shards were asked for an unsure pod. */
byte found_shard[PODS], found_seq[PODS], found_state[PODS], asked[PODS];
hidden byte one_state, one_seq;

#define LIVING 0
byte fence[WORKERS]; /* of a lost worker: which step is next, a grant on each shard, then a look-up on each */
byte losses, evictions, deletions, expiries, gives;

/* --- what workers have in hand --- */
#define NOTHING 0
#define IN_HAND 1
#define PROPOSED 2
#define PLACED 3  /* an outcome is on its way to the dispatcher */
#define BY(w, p) ((w) * PODS + (p))
byte stage[WORKERS * PODS];
byte to_shard[WORKERS * PODS], placed_seq[WORKERS * PODS];
byte tried[WORKERS * PODS]; /* shards, as bits */

/* --- copies of calls --- */
#define NO_CALL 0
#define COMMIT 1
#define CONFIRM 2
#define RELEASE 3
byte copies;
byte copy_call, copy_shard, copy_pod, copy_worker, copy_seq; /* one under way at a time */
byte sending[WORKERS];               /* the highest number of a copy of a proposal, by worker */
byte sent_as[WORKERS * PODS];        /* the number of the last copy of each proposal */
byte copy_sending;                   /* of an earlier copy of a proposal that is under way */

inline perhaps_copy(call, s, p, w, q) {
    if
    :: true
    :: copies < COPIES && copy_call == NO_CALL ->
        copies++;
        copy_call = call; copy_shard = s; copy_pod = p; copy_worker = w; copy_seq = q;
        if
        :: call == COMMIT -> copy_sending = sending[w]; sending[w]++
        :: else
        fi
    fi
}

#define PLACED_BY(w, s, p, q) (stage[BY(w, p)] == PLACED && to_shard[BY(w, p)] == s && placed_seq[BY(w, p)] == q)
#define IN_TABLE(s, p, q) (shard_of[p] == s && seq_of[p] == q)
#define REMEMBERED(s, p, q) (IN_TABLE(s, p, q) || PLACED_BY(0, s, p, q) || PLACED_BY(1, s, p, q) || \
    (found_shard[p] == s && found_seq[p] == q) || (copy_pod == p && copy_shard == s && copy_seq == q))

#include "ledger.pml"

inline run_copy() {
    copy_call != NO_CALL;
    if
    :: copy_call == COMMIT ->
        admit_copy(copy_shard, copy_worker, copy_sending);
        if
        :: answer == DONE -> commit(copy_shard, copy_pod, copy_worker, EPOCH)
        :: else
        fi
    :: copy_call == CONFIRM -> confirm(copy_shard, copy_pod, copy_seq, TERM)
    :: copy_call == RELEASE -> release(copy_shard, copy_pod, copy_seq, TERM)
    fi;
    copy_call = NO_CALL; copy_shard = 0; copy_pod = 0; copy_worker = 0; copy_seq = 0;
    copy_sending = 0
}

/* --- the worker --- */

inline propose(w, p, s) {
    stage[BY(w, p)] == IN_HAND && !(tried[BY(w, p)] & (1 << (s)));
    stage[BY(w, p)] = PROPOSED;
    to_shard[BY(w, p)] = s;
    tried[BY(w, p)] = tried[BY(w, p)] | (1 << (s));
    perhaps_copy(COMMIT, s, p, w, 0);
    sent_as[BY(w, p)] = sending[w]
}

inline take_verdict(w, p) {
    stage[BY(w, p)] == PROPOSED;
    admit_copy(to_shard[BY(w, p)], w, sent_as[BY(w, p)]);
    if
    :: answer == DONE -> commit(to_shard[BY(w, p)], p, w, EPOCH)
    :: else
    fi;
    if
    :: answer == OLD -> sent_as[BY(w, p)] = sending[w] /* nothing was decided: it is sent again */
    :: answer == DONE -> stage[BY(w, p)] = PLACED; placed_seq[BY(w, p)] = answer_seq
    :: answer == REFUSED -> stage[BY(w, p)] = IN_HAND; to_shard[BY(w, p)] = 0
    :: answer == STALE -> put_down(w, p)
    fi
}

inline put_down(w, p) {
    stage[BY(w, p)] = NOTHING; to_shard[BY(w, p)] = 0; placed_seq[BY(w, p)] = 0; tried[BY(w, p)] = 0;
    sent_as[BY(w, p)] = 0
}

/* --- the dispatcher --- */

inline give(w, p) {
    phase[p] == QUEUED && fence[w] == LIVING && stage[BY(w, p)] == NOTHING && gives < PODS + RETRIES;
    gives++;
    phase[p] = SCHEDULING;
    with_worker[p] = w;
    stage[BY(w, p)] = IN_HAND
}

/* The worker's outcome. Those of a closed stream are ignored. */
inline outcome(w, p) {
    stage[BY(w, p)] == PLACED || (stage[BY(w, p)] == IN_HAND && tried[BY(w, p)] == 3);
    if
    :: fence[w] != LIVING || phase[p] != SCHEDULING || with_worker[p] != w
    :: else ->
        if
        :: stage[BY(w, p)] == PLACED -> bound(p, to_shard[BY(w, p)], placed_seq[BY(w, p)])
        :: else -> requeue(p)
        fi
    fi;
    put_down(w, p)
}

inline bound(p, s, q) {
    shard_of[p] = s;
    seq_of[p] = q;
    with_worker[p] = 0;
    if
    :: deleted[p] -> phase[p] = RELEASING; perhaps_copy(RELEASE, s, p, 0, q)
    :: else -> phase[p] = BOUND; perhaps_copy(CONFIRM, s, p, 0, q)
    fi
}

inline requeue(p) {
    shard_of[p] = 0; seq_of[p] = 0; sure[p] = 0; with_worker[p] = 0;
    if
    :: deleted[p] -> phase[p] = DELETED
    :: else -> phase[p] = QUEUED
    fi
}

inline confirm_bound(p) {
    phase[p] == BOUND && !sure[p];
    confirm(shard_of[p], p, seq_of[p], TERM);
    if
    :: answer == DONE -> sure[p] = 1
    :: answer == GONE -> phase[p] = UNSURE
    fi
}

inline evict(p) {
    phase[p] == BOUND && evictions < EVICTIONS;
    evictions++;
    phase[p] = RELEASING;
    sure[p] = 0;
    perhaps_copy(RELEASE, shard_of[p], p, 0, seq_of[p])
}

inline delete(p) {
    !deleted[p] && deletions < DELETIONS;
    deletions++;
    deleted[p] = 1;
    if
    :: phase[p] == QUEUED -> phase[p] = DELETED
    :: phase[p] == BOUND ->
        phase[p] = RELEASING;
        sure[p] = 0;
        perhaps_copy(RELEASE, shard_of[p], p, 0, seq_of[p])
    :: else /* settled when it comes back */
    fi
}

inline release_one(p) {
    phase[p] == RELEASING;
    release(shard_of[p], p, seq_of[p], TERM);
    requeue(p)
}

/* A worker is declared lost: first it is fenced on every shard, then its pods are looked up. */
inline lose(w) {
    fence[w] == LIVING && losses < LOSSES;
    losses++;
    fence[w] = 1
}

inline fence_shard(w) {
    fence[w] == 1 || fence[w] == 2;
    grant(fence[w] - 1, w, EPOCH + 1, TERM);
    fence[w]++;
    if
    :: fence[w] == 3 -> fenced[w] = EPOCH
    :: else
    fi
}

/* One call for all its pods on a shard. After the last shard each pod is settled. */
inline look_up_pods_of(w) {
    fence[w] == 3 || fence[w] == 4;
    look_up_if_with(w, 0);
    look_up_if_with(w, 1);
    look_up_if_with(w, 2);
    fence[w]++
}

inline look_up_if_with(w, p) {
    if
    :: phase[p] == SCHEDULING && with_worker[p] == w -> look_up_on(fence[w] - 3, p)
    :: else
    fi
}

/* A pod whose confirmation came too late. Its worker may live, so nothing is fenced. */
inline look_up_unsure(p) {
    phase[p] == UNSURE;
    asked[p]++;
    look_up_on(asked[p] - 1, p)
}

/* The pod is settled after the last shard. A second reservation, of a late copy, is not confirmed: its lease
 * ends. */
inline look_up_on(s, p) {
    lookup(s, p, one_state, one_seq);
    if
    :: one_state > found_state[p] -> found_state[p] = one_state; found_seq[p] = one_seq; found_shard[p] = s
    :: else
    fi;
    if
    :: s < SHARDS - 1
    :: else ->
        if
        :: found_state[p] >= ASSUMED -> bound(p, found_shard[p], found_seq[p])
        :: else -> requeue(p)
        fi;
        found_state[p] = ABSENT; found_seq[p] = 0; found_shard[p] = 0; asked[p] = 0
    fi
}

/* --- leases --- */

#define AWAITED(s, p) (PLACED_BY(0, s, p, seq[AT(s, p)]) || PLACED_BY(1, s, p, seq[AT(s, p)]) || \
    (phase[p] == BOUND && IN_TABLE(s, p, seq[AT(s, p)])))

inline expire(s, p) {
    MAY_REAP(s, p) && (!AWAITED(s, p) || expiries < EXPIRIES);
    if
    :: AWAITED(s, p) -> expiries++
    :: else
    fi;
    reap(s, p)
}

/* --- the processes --- */

#define FOR_PODS(step) :: atomic { step(0) } :: atomic { step(1) } :: atomic { step(2) }
#define FOR_PODS_OF(step, w) :: atomic { step(w, 0) } :: atomic { step(w, 1) } :: atomic { step(w, 2) }

active [WORKERS] proctype Worker() {
end:
    do
    :: atomic { propose(_pid, 0, 0) } :: atomic { propose(_pid, 0, 1) }
    :: atomic { propose(_pid, 1, 0) } :: atomic { propose(_pid, 1, 1) }
    :: atomic { propose(_pid, 2, 0) } :: atomic { propose(_pid, 2, 1) }
    FOR_PODS_OF(take_verdict, _pid)
    od
}

active proctype Dispatcher() {
end:
    do
    FOR_PODS_OF(give, 0)
    FOR_PODS_OF(give, 1)
    FOR_PODS_OF(outcome, 0)
    FOR_PODS_OF(outcome, 1)
    FOR_PODS(confirm_bound)
    :: atomic { evict(0) }
    :: atomic { delete(0) } :: atomic { delete(1) }
    FOR_PODS(release_one)
    :: atomic { lose(0) }
    :: atomic { fence_shard(0) }
    :: atomic { look_up_pods_of(0) }
    FOR_PODS(look_up_unsure)
    od
}

active proctype Ledger() {
end:
    do
    :: atomic { run_copy() }
    FOR_PODS_OF(expire, 0)
    FOR_PODS_OF(expire, 1)
    od
}

#define QUIET(p) ( \
    ((phase[p] == QUEUED || phase[p] == DELETED) && !HELD(0, p) && !HELD(1, p)) || \
    (phase[p] == BOUND && sure[p] && state[AT(shard_of[p], p)] == CONFIRMED && \
        seq[AT(shard_of[p], p)] == seq_of[p] && !HELD(OTHER(shard_of[p]), p)))

active proctype Quiet() {
    timeout -> assert(QUIET(0) && QUIET(1) && QUIET(2))
}
