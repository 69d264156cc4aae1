/* The ledger: its reservations, and the scripts that change them. One inline is one script, and runs in one
 * atomic step on one shard, as in Redis. The other models include this file.
 *
 * A pod's reservation on a shard is ABSENT, PREPARED (unvalidated, told to nobody), ASSUMED (committed, with
 * a lease) or CONFIRMED (no lease). Every write says who makes it (a worker's epoch or a dispatcher's term)
 * and which reservation it means (its sequence number).
 *
 * The models only ask of two sequence numbers whether they are equal. So a new one is the lowest that nobody
 * remembers for that pod and shard; the file that includes this one defines REMEMBERED(s, p, q).
 *
 * A lease may end at any moment: the models have no clock, so they cover every length of a lease. */

#define ROOM(s) ((s) + 1)  /* pods that fit on a shard's nodes: all three fit, and not anywhere */

#define ABSENT 0
#define PREPARED 1
#define ASSUMED 2
#define CONFIRMED 3
#define STUCK 4  /* prepared and without a lease; only a fault leads here */

/* What a script answers. */
#define REFUSED 0
#define DONE 1
#define GONE 2   /* the caller means a reservation that is no more */
#define STALE 3  /* the caller's epoch or term is over */
#define OLD 4    /* the shard has decided a later copy of what this worker sent */

#define AT(s, p) ((s) * PODS + (p))
#define OF(s, w) ((s) * WORKERS + (w))

byte requested[SHARDS];         /* how many pods are accounted on a shard's nodes */
byte state[SHARDS * PODS];      /* of each reservation */
byte seq[SHARDS * PODS];        /* of each reservation; 0: there is none */
bit validated[SHARDS * PODS];   /* a script has checked it against everything; no part of the ledger */
byte granted[SHARDS * WORKERS] = 1; /* each worker's epoch in force */
byte newest[SHARDS * WORKERS];  /* the highest number of a copy that the worker sent */
byte term[SHARDS] = 1;          /* the newest dispatcher that the shard knows */

/* Set by the model when nothing may come of the epochs up to this one any more. */
byte fenced[WORKERS];

/* What the dispatcher in office knows of each pod: the shard of its reservation, and whether it is confirmed. */
byte shard_of[PODS];
bit sure[PODS];

hidden byte answer, answer_seq, fresh; /* of the script that ran last in this atomic step */

#define HELD(s, p) (state[AT(s, p)] != ABSENT)
#define COMMITTED(s, p) (state[AT(s, p)] == ASSUMED || state[AT(s, p)] == CONFIRMED)
#define MEANS(s, p, q) (state[AT(s, p)] != ABSENT && seq[AT(s, p)] == (q))
#define OTHER(s) (1 - (s))
#define ON_SHARD(s) ((state[AT(s, 0)] != ABSENT) + (state[AT(s, 1)] != ABSENT) + (state[AT(s, 2)] != ABSENT))

/* --- what the scripts share --- */

inline new_seq(s, p) {
    fresh = 1;
    do
    :: REMEMBERED(s, p, fresh) || seq[AT(s, p)] == fresh -> fresh++
    :: else -> break
    od;
    seq[AT(s, p)] = fresh
}

inline reserve(s, p, e, w, new_state) {
    assert(e > fenced[w]);  /* a fenced epoch writes nothing */
#ifdef STRICT
    assert(!HELD(OTHER(s), p));  /* not even a leased copy that nobody was told of */
#endif
    new_seq(s, p);
    state[AT(s, p)] = new_state;
    validated[AT(s, p)] = (new_state == ASSUMED);
    requested[s]++;
    assert(requested[s] <= ROOM(s));  /* no overcommit */
    assert(requested[s] == ON_SHARD(s))
}

inline give_back(s, p) {
    assert(!(sure[p] && shard_of[p] == s));  /* a confirmed pod is where the dispatcher thinks */
    state[AT(s, p)] = ABSENT;
    seq[AT(s, p)] = 0;
    validated[AT(s, p)] = 0;
    requested[s]--;
    assert(requested[s] == ON_SHARD(s))
}

/* --- the scripts --- */

/* prelude.lua, of a proposal: n is the number of the copy. */
inline admit_copy(s, w, n) {
    answer = DONE;
#ifndef DECIDE_OLD_COPIES
    if
    :: n < newest[OF(s, w)] -> answer = OLD
    :: else -> newest[OF(s, w)] = n
    fi
#endif
}

/* commit.lua: one pod of a proposal. A reservation that exists answers for itself (DUPLICATE); a prepared one
 * is resolved first: nobody validated it, so it is aborted. */
inline commit(s, p, w, e) {
    answer = REFUSED;
    answer_seq = 0;
    if
    :: granted[OF(s, w)] != e -> answer = STALE
    :: else ->
#ifndef DUPLICATE_OF_PREPARED
        if
        :: state[AT(s, p)] == PREPARED -> give_back(s, p)
        :: else
        fi;
#endif
        if
        :: HELD(s, p) -> answer = DONE
        :: !HELD(s, p) && requested[s] < ROOM(s) -> reserve(s, p, e, w, ASSUMED); answer = DONE
        :: else
        fi;
        answer_seq = seq[AT(s, p)]
    fi
}

/* commit.lua with prepare only: the first phase. What exists already is DUPLICATE, prepared or not. */
inline prepare(s, p, w, e) {
    answer = REFUSED;
    answer_seq = 0;
    if
    :: granted[OF(s, w)] != e -> answer = STALE
    :: else ->
        if
        :: HELD(s, p) -> answer = DONE
        :: !HELD(s, p) && requested[s] < ROOM(s) -> reserve(s, p, e, w, PREPARED); answer = DONE
        :: else
        fi;
        answer_seq = seq[AT(s, p)]
    fi
}

/* commit_prepared.lua: the second phase. What is prepared gets a new sequence number; what was committed
 * before keeps its own. */
inline commit_prepared(s, p, w, e, q) {
    answer_seq = 0;
    if
#ifndef COMMIT_PREPARED_ANY_EPOCH
    :: granted[OF(s, w)] != e -> answer = STALE
    :: granted[OF(s, w)] == e && MEANS(s, p, q) ->
#else
    :: MEANS(s, p, q) ->
#endif
        if
        :: state[AT(s, p)] == PREPARED || state[AT(s, p)] == STUCK ->
            assert(e > fenced[w]);  /* a fenced epoch writes nothing */
            assert(validated[AT(s, p)]);
            new_seq(s, p);
            state[AT(s, p)] = ASSUMED
        :: else
        fi;
        answer = DONE;
        answer_seq = seq[AT(s, p)]
    :: else -> answer = GONE
    fi
}

/* validate.lua: checks a prepared pod against the domain versions (rules.pml has them). What was committed
 * meanwhile is not checked again. */
inline validate(s, p, q) {
    if
    :: MEANS(s, p, q) -> validated[AT(s, p)] = 1
    :: else
    fi
}

/* release.lua with `unconfirmed`: gives back what a two-phase commit holds. Never what is confirmed: the
 * dispatcher counts on it, and an old copy of a proposal may have found it as DUPLICATE. */
inline abort(s, p, q) {
    if
#ifndef ABORT_CONFIRMED
    :: MEANS(s, p, q) && state[AT(s, p)] != CONFIRMED -> give_back(s, p); answer = DONE
#else
    :: MEANS(s, p, q) -> give_back(s, p); answer = DONE
#endif
    :: else -> answer = GONE
    fi
}

/* confirm.lua: ends the lease of a committed reservation. */
inline confirm(s, p, q, t) {
    if
#ifndef WRITES_WITHOUT_TERM
    :: term[s] != t -> answer = STALE
    :: term[s] == t && MEANS(s, p, q) && COMMITTED(s, p) ->
#else
    :: MEANS(s, p, q) && COMMITTED(s, p) ->
#endif
        assert(state[AT(OTHER(s), p)] != CONFIRMED);  /* one reservation a pod */
        assert(validated[AT(s, p)]);
        state[AT(s, p)] = CONFIRMED;
        answer = DONE
#ifdef CONFIRM_PREPARED
    :: term[s] == t && MEANS(s, p, q) && state[AT(s, p)] == PREPARED ->
        state[AT(s, p)] = STUCK;
        answer = DONE
#endif
    :: else -> answer = GONE
    fi
}

/* release.lua: gives back the reservation that the dispatcher means. */
inline release(s, p, q, t) {
    if
#ifndef WRITES_WITHOUT_TERM
    :: term[s] != t -> answer = STALE
    :: term[s] == t &&
#else
    ::
#endif
#ifndef RELEASE_BY_UID
       MEANS(s, p, q) -> give_back(s, p); answer = DONE
#else
       HELD(s, p) -> give_back(s, p); answer = DONE
#endif
    :: else -> answer = GONE
    fi
}

/* grant.lua: a worker's epoch, which never decreases. */
inline grant(s, w, e, t) {
    if
    :: term[s] != t -> answer = STALE
    :: else ->
        if
        :: granted[OF(s, w)] < e -> granted[OF(s, w)] = e
        :: else
        fi;
        answer = DONE
    fi
}

/* lookup.lua: a pod's reservation on one shard, with its state. The caller resolves a prepared one. */
inline lookup(s, p, its_state, its_seq) {
    its_state = state[AT(s, p)];
    its_seq = seq[AT(s, p)]
}

/* reap.lua: a lease is over. */
#define MAY_REAP(s, p) (state[AT(s, p)] == PREPARED || state[AT(s, p)] == ASSUMED)
inline reap(s, p) {
    give_back(s, p)
}
