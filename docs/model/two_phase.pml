/* A gang over two shards: prepare, validate, commit, abort, by resolvers that may die or freeze.
 *
 * Pods 0 and 1 are a gang of minimum 2, proposed with pod 0 on shard 0 and pod 1 on shard 1, or the other way
 * round. Pod 2 is placed alone and wants the same room; a pod of the gang is placed alone if it is evicted
 * after the start. Two resolvers carry out the gang's proposals, each on its own.
 *
 * Faults: DEATHS of resolvers between any two scripts, COPIES of a proposal that a second resolver carries
 * out at the same time or later (its worker sent it again), REFUSALS by validation, LOSSES of worker 0 (it
 * and its resolvers go on), EVICTIONS of pod 0, and EXPIRIES leases that end while somebody still counts on
 * them. A resolver that is frozen is one that takes no step for a while, so every order covers it.
 *
 * Resolvers are alike, so the first idle one begins; workers are alike, so the one that is lost is called 0. */

#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef COPIES
#define COPIES 1
#endif
#ifndef REFUSALS
#define REFUSALS 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef EVICTIONS
#define EVICTIONS 1
#endif
#ifndef EXPIRIES
#define EXPIRIES 1
#endif
#ifndef GIVES
#define GIVES 2  /* how often the gang is given to a worker */
#endif
#ifndef TRIES
#define TRIES 2  /* how often single pods are placed, all together */
#endif

#define SHARDS 2
#define WORKERS 2
#define PODS 3
#define EPOCH 1
#define TERM 1
#define RESOLVERS 2
#define POD_ON(plan, s) ((plan) == 0 -> (s) : OTHER(s))
#define NO_WORKER 2

/* --- the dispatcher --- */
#define WAITING 0
#define SCHEDULING 1
#define STARTING 2 /* all its reservations are known; each is being confirmed */
#define UNDOING 3  /* less than the minimum: released */
#define STARTED 4
byte gang;
byte gang_with = NO_WORKER;
bit was_whole; /* both pods were committed at one moment; nobody knows it but the model */

#define QUEUED 0
#define BOUND 1
#define UNSURE 2
#define RELEASING 3
byte phase[PODS]; /* of a pod that is placed alone */
byte seq_of[PODS];
byte found_shard[PODS], found_seq[PODS], found_state[PODS], asked[PODS];
byte to_abort[SHARDS * PODS]; /* prepared reservations that a look-up found */
hidden byte one_state, one_seq;
hidden byte a_pod, a_worker, a_seq; /* of a resolver's step */

#define LIVING 0
byte fence[WORKERS];
byte deaths, copies, refusals, losses, evictions, expiries, gives, tries;

/* --- workers: what each does with the gang --- */
#define NOTHING 0
#define IN_HAND 1
#define PROPOSED 2
#define PLACED 3
#define TURNED_DOWN 4
byte stage[WORKERS], plan[WORKERS], stay[WORKERS];
byte placed_seq[WORKERS * SHARDS];

/* --- resolvers: the proposal that each carries out --- */
#define IDLE 0
#define PREPARE 1  /* and PREPARE + 1 for the second shard; likewise below */
#define VALIDATE 3
#define COMMIT_PREPARED 4
#define ABORT 6
byte step[RESOLVERS], of_worker[RESOLVERS], of_plan[RESOLVERS], of_stay[RESOLVERS];
byte known_seq[RESOLVERS * SHARDS];

#define KNOWN(r, s) known_seq[(r) * SHARDS + (s)]

#define HELD_BY(r, s, p, q) (step[r] != IDLE && POD_ON(of_plan[r], s) == p && KNOWN(r, s) == q)
#define PLACED_BY(w, s, p, q) (stage[w] == PLACED && POD_ON(plan[w], s) == p && placed_seq[OF(s, w)] == q)
#define IN_TABLE(s, p, q) (shard_of[p] == s && seq_of[p] == q)
#define AWAITED(s, p, q) (HELD_BY(0, s, p, q) || HELD_BY(1, s, p, q) || PLACED_BY(0, s, p, q) || \
    PLACED_BY(1, s, p, q) || IN_TABLE(s, p, q))
#define REMEMBERED(s, p, q) (AWAITED(s, p, q) || to_abort[AT(s, p)] == q || \
    (found_shard[p] == s && found_seq[p] == q))

#include "ledger.pml"

#define CARRIES_OUT(r, w) (step[r] != IDLE && of_worker[r] == w && of_stay[r] == stay[w] && \
    of_plan[r] == plan[w])

#define STOP(r) \
    step[r] = IDLE; of_worker[r] = 0; of_plan[r] = 0; of_stay[r] = 0; KNOWN(r, 0) = 0; KNOWN(r, 1) = 0

inline begin(r, w) {
    step[r] == IDLE && (r == 0 || step[0] != IDLE) && stage[w] == PROPOSED &&
        (!CARRIES_OUT(1 - r, w) || copies < COPIES);
    if
    :: CARRIES_OUT(1 - r, w) -> copies++
    :: else
    fi;
    step[r] = PREPARE; of_worker[r] = w; of_plan[r] = plan[w]; of_stay[r] = stay[w]
}

inline put_down(w) {
    stage[w] = NOTHING; plan[w] = 0; placed_seq[OF(0, w)] = 0; placed_seq[OF(1, w)] = 0
}

/* The worker takes the first answer to its proposal, and ignores another. */
inline reply(r, verdict) {
    a_worker = of_worker[r];
    if
    :: CARRIES_OUT(r, a_worker) && stage[a_worker] == PROPOSED ->
        if
        :: verdict == DONE ->
            stage[a_worker] = PLACED;
            placed_seq[OF(0, a_worker)] = KNOWN(r, 0);
            placed_seq[OF(1, a_worker)] = KNOWN(r, 1)
        :: else -> stage[a_worker] = TURNED_DOWN
        fi
    :: else
    fi;
    STOP(r)
}

inline read_part(r, s) {
    a_worker = of_worker[r]; a_pod = POD_ON(of_plan[r], s); a_seq = KNOWN(r, s)
}

inline prepare_part(r, s) {
    step[r] == PREPARE + s;
    read_part(r, s);
    prepare(s, a_pod, a_worker, EPOCH);
    if
    :: answer == DONE -> KNOWN(r, s) = answer_seq; step[r]++
    :: answer != DONE && s == 0 -> reply(r, answer)
    :: answer != DONE && s == 1 -> step[r] = ABORT
    fi
}

/* In one script on shard 0, after all shards have prepared. */
inline validate_parts(r) {
    step[r] == VALIDATE;
    if
    :: true ->
        read_part(r, 0); validate(0, a_pod, a_seq);
        read_part(r, 1); validate(1, a_pod, a_seq);
        step[r] = COMMIT_PREPARED
    :: refusals < REFUSALS -> refusals++; step[r] = ABORT
    fi
}

#define COMMITTED_SOMEWHERE(p) (COMMITTED(0, p) || COMMITTED(1, p))

inline commit_part(r, s) {
    step[r] == COMMIT_PREPARED + s;
    read_part(r, s);
    commit_prepared(s, a_pod, a_worker, EPOCH, a_seq);
    if
    :: answer == DONE ->
        KNOWN(r, s) = answer_seq;
        was_whole = was_whole || (COMMITTED_SOMEWHERE(0) && COMMITTED_SOMEWHERE(1));
        if
        :: s == 0 -> step[r]++
        :: else -> reply(r, DONE)
        fi
    :: else -> step[r] = ABORT
    fi
}

inline abort_part(r, s) {
    step[r] == ABORT + s;
    read_part(r, s);
    if
    :: a_seq != 0 -> abort(s, a_pod, a_seq)
    :: else
    fi;
    if
    :: s == 0 -> step[r]++
    :: else -> reply(r, REFUSED)
    fi
}

inline die(r) {
    step[r] != IDLE && deaths < DEATHS;
    deaths++;
    STOP(r)
}

/* --- the worker --- */

/* A refused worker gives the gang back. That it may propose it again by itself changes nothing here. */
inline propose(w, a_plan) {
    stage[w] == IN_HAND;
    stage[w] = PROPOSED; plan[w] = a_plan
}

/* --- the dispatcher and the gang --- */

inline give(w) {
    gang == WAITING && fence[w] == LIVING && stage[w] == NOTHING && gives < GIVES;
    gives++;
    gang = SCHEDULING; gang_with = w; stage[w] = IN_HAND; stay[w]++
}

inline outcome(w) {
    stage[w] == PLACED || stage[w] == TURNED_DOWN;
    if
    :: fence[w] != LIVING || gang != SCHEDULING || gang_with != w
    :: else ->
        if
        :: stage[w] == PLACED ->
            shard_of[POD_ON(plan[w], 0)] = 0; seq_of[POD_ON(plan[w], 0)] = placed_seq[OF(0, w)];
            shard_of[POD_ON(plan[w], 1)] = 1; seq_of[POD_ON(plan[w], 1)] = placed_seq[OF(1, w)];
            start()
        :: else -> gang = WAITING
        fi;
        gang_with = NO_WORKER
    fi;
    put_down(w)
}

/* The gang starts when its minimum is confirmed. Before, a lease may have ended while a resolver was between
 * its two commits: then the gang never was whole. */
inline start() {
#ifdef START_UNCONFIRMED
    gang_starts();
#else
    gang = STARTING
#endif
}

inline gang_starts() {
    gang = STARTED;
    assert(was_whole); /* its minimum was committed, all at once */
    phase[0] = BOUND; phase[1] = BOUND
}

inline confirm_gang(p) {
    gang == STARTING && !sure[p];
    confirm(shard_of[p], p, seq_of[p], TERM);
    if
    :: answer == DONE ->
        sure[p] = 1;
        if
        :: sure[0] && sure[1] -> gang_starts()
        :: else
        fi
    :: else -> gang = UNDOING; sure[0] = 0; sure[1] = 0
    fi
}

inline release_gang(p) {
    gang == UNDOING && seq_of[p] != 0;
    release(shard_of[p], p, seq_of[p], TERM);
    seq_of[p] = 0; shard_of[p] = 0;
    if
    :: seq_of[0] == 0 && seq_of[1] == 0 -> gang = WAITING
    :: else
    fi
}

/* --- the fence of a lost worker --- */

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

inline look_up_gang_of(w) {
    fence[w] == 3 || fence[w] == 4;
    if
    :: gang == SCHEDULING && gang_with == w ->
        look_up_on(fence[w] - 3, 0);
        look_up_on(fence[w] - 3, 1);
        if
        :: fence[w] == 4 -> gang_with = NO_WORKER; settle_gang()
        :: else
        fi
    :: else
    fi;
    fence[w]++
}

/* A prepared reservation is nobody's place: it is aborted. */
inline look_up_on(s, p) {
    lookup(s, p, one_state, one_seq);
#ifndef CONFIRM_PREPARED
    if
    :: one_state == PREPARED -> to_abort[AT(s, p)] = one_seq; one_state = ABSENT
    :: else
    fi;
#endif
    if
    :: one_state > found_state[p] -> found_state[p] = one_state; found_seq[p] = one_seq; found_shard[p] = s
    :: else
    fi
}

inline take_found(p) {
    shard_of[p] = found_shard[p]; seq_of[p] = found_seq[p];
    found_state[p] = ABSENT; found_seq[p] = 0; found_shard[p] = 0
}

inline settle_gang() {
    take_found(0);
    take_found(1);
    if
    :: seq_of[0] != 0 && seq_of[1] != 0 -> start()
    :: seq_of[0] == 0 && seq_of[1] == 0 -> gang = WAITING
    :: else -> gang = UNDOING
    fi
}

inline abort_found(s, p) {
    to_abort[AT(s, p)] != 0;
    abort(s, p, to_abort[AT(s, p)]);
    to_abort[AT(s, p)] = 0
}

/* --- pods that are placed alone, by worker 1 --- */

#define ALONE(p) (p == 2 || gang == STARTED)

inline place(p, s) {
    ALONE(p) && phase[p] == QUEUED && tries < TRIES;
    tries++;
    commit(s, p, 1, EPOCH);
    if
    :: answer == DONE -> phase[p] = BOUND; shard_of[p] = s; seq_of[p] = answer_seq
    :: else
    fi
}

inline confirm_alone(p) {
    ALONE(p) && phase[p] == BOUND && !sure[p];
    confirm(shard_of[p], p, seq_of[p], TERM);
    if
    :: answer == DONE -> sure[p] = 1
    :: answer == GONE -> phase[p] = UNSURE
    fi
}

inline look_up_unsure(p) {
    phase[p] == UNSURE;
    look_up_on(asked[p], p);
    asked[p]++;
    if
    :: asked[p] < SHARDS
    :: else ->
        asked[p] = 0;
        phase[p] = (found_state[p] == ABSENT -> QUEUED : BOUND);
        take_found(p)
    fi
}

inline evict(p) {
    gang == STARTED && phase[p] == BOUND && evictions < EVICTIONS;
    evictions++;
    sure[p] = 0;
    phase[p] = RELEASING
}

inline release_alone(p) {
    phase[p] == RELEASING;
    release(shard_of[p], p, seq_of[p], TERM);
    phase[p] = QUEUED; shard_of[p] = 0; seq_of[p] = 0
}

/* --- leases --- */

inline expire(s, p) {
    MAY_REAP(s, p) && (!AWAITED(s, p, seq[AT(s, p)]) || expiries < EXPIRIES);
    if
    :: AWAITED(s, p, seq[AT(s, p)]) -> expiries++
    :: else
    fi;
    reap(s, p)
}

/* --- the processes --- */

#define FOR_SHARDS(inlined, x) :: atomic { inlined(x, 0) } :: atomic { inlined(x, 1) }
#define FOR_PODS(inlined) :: atomic { inlined(0) } :: atomic { inlined(1) } :: atomic { inlined(2) }
#define EVERYWHERE(inlined) \
    :: atomic { inlined(0, 0) } :: atomic { inlined(0, 1) } :: atomic { inlined(0, 2) } \
    :: atomic { inlined(1, 0) } :: atomic { inlined(1, 1) } :: atomic { inlined(1, 2) }

active [RESOLVERS] proctype Resolver() {
end:
    do
    :: atomic { begin(_pid, 0) } :: atomic { begin(_pid, 1) }
    FOR_SHARDS(prepare_part, _pid)
    :: atomic { validate_parts(_pid) }
    FOR_SHARDS(commit_part, _pid)
    FOR_SHARDS(abort_part, _pid)
    :: atomic { die(_pid) }
    od
}

active proctype Workers() {
end:
    do
    :: atomic { propose(0, 0) } :: atomic { propose(0, 1) }
    :: atomic { propose(1, 0) } :: atomic { propose(1, 1) }
    od
}

active proctype Dispatcher() {
end:
    do
    :: atomic { give(0) } :: atomic { give(1) }
    :: atomic { outcome(0) } :: atomic { outcome(1) }
    :: atomic { confirm_gang(0) } :: atomic { confirm_gang(1) }
    :: atomic { release_gang(0) } :: atomic { release_gang(1) }
    :: atomic { lose(0) }
    :: atomic { fence_shard(0) }
    :: atomic { look_up_gang_of(0) }
    EVERYWHERE(abort_found)
    FOR_SHARDS(place, 0)
    FOR_SHARDS(place, 2)
    FOR_PODS(confirm_alone)
    FOR_PODS(look_up_unsure)
    :: atomic { evict(0) }
    :: atomic { release_alone(0) }
    od
}

active proctype Ledger() {
end:
    do
    EVERYWHERE(expire)
    od
}

#define NO_RESERVATION(p) (!HELD(0, p) && !HELD(1, p))
#define IN_PLACE(p) (sure[p] && state[AT(shard_of[p], p)] == CONFIRMED && \
    seq[AT(shard_of[p], p)] == seq_of[p] && !HELD(OTHER(shard_of[p]), p))
#define QUIET_ALONE(p) ((phase[p] == QUEUED && NO_RESERVATION(p)) || (phase[p] == BOUND && IN_PLACE(p)))
#define QUIET_GANG ((gang == WAITING && NO_RESERVATION(0) && NO_RESERVATION(1)) || \
    (gang == STARTED && QUIET_ALONE(0) && QUIET_ALONE(1)))

active proctype Quiet() {
    timeout -> assert(QUIET_GANG && QUIET_ALONE(2))
}
