/* The loops of a decision, compiled: what scan_numpy.py says, to the same last digit.

   What a function means is written there, once; tests/runtime/test_scan.py holds the two
   together. Sorting is left to numpy, whose vector instructions no plain loop matches.

   Arrays come in and go out as C-contiguous buffers. Every format, shape and index is
   checked, so that no argument reads or writes outside them. */

#include <Python.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST_PROBABILITY (1.0 + 1e-5)
#define TINY 1e-300

/* Formats of buffers, as the module struct names them. */
#define DOUBLES "d"
#define FLOATS "df"
#define INTS "lq"
#define BOOLS "?"

/* What a call holds until it returns. */
typedef struct {
    Py_buffer views[6];
    void *scratch[3];
    int viewed, scratched;
} Call;

static void release(Call *call)
{
    while (call->viewed)
        PyBuffer_Release(&call->views[--call->viewed]);
    while (call->scratched)
        free(call->scratch[--call->scratched]);
}

static int refuse(PyObject *kind, const char *message)
{
    PyErr_SetString(kind, message);
    return 0;
}

static int fits(int fitting)
{
    return fitting || refuse(PyExc_ValueError, "shapes that do not fit");
}

/* The next argument's buffer; NULL and an exception where it is of another kind. */
static Py_buffer *take(Call *call, PyObject *object, const char *formats, int ndim,
                       int access)
{
    Py_buffer *view = &call->views[call->viewed];
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | access))
        return NULL;
    call->viewed++;
    const char *format = view->format ? view->format : "B";
    int known = format[0] && !format[1] && strchr(formats, format[0]);
    /* A C long is shorter on some platforms. */
    int whole = known && strchr(INTS, format[0]);
    if (known && view->ndim == ndim && (!whole || view->itemsize == sizeof(long long)))
        return view;
    refuse(PyExc_TypeError, "a buffer of another format or shape");
    return NULL;
}

static void *scratch(Call *call, Py_ssize_t count, size_t size)
{
    void *found = calloc(count + 1, size);
    if (found)
        call->scratch[call->scratched++] = found;
    else
        PyErr_NoMemory();
    return found;
}

/* A whole number from 0 to `most`. */
static int size_from(PyObject *object, Py_ssize_t most, Py_ssize_t *size)
{
    *size = PyLong_AsSsize_t(object);
    if (*size == -1 && PyErr_Occurred())
        return 0;
    return fits(*size >= 0 && *size <= most);
}

/* Floats of either kind, read as doubles. */
typedef struct {
    const void *values;
    int doubles;
} Reals;

static Reals reals_of(const Py_buffer *view)
{
    return (Reals){view->buf, view->itemsize == sizeof(double)};
}

static inline double at(Reals reals, Py_ssize_t place)
{
    return reals.doubles ? ((const double *)reals.values)[place]
                         : (double)((const float *)reals.values)[place];
}

/* Curves of conditional acceptance: knots, then acceptance there by rank, then how fast
   it rises to the next. */
typedef struct {
    const double *knots;
    Py_ssize_t ranks, bends;
} Curves;

static int curves_from(Call *call, PyObject *object, Curves *curves)
{
    Py_buffer *view = take(call, object, DOUBLES, 2, 0);
    if (!view)
        return 0;
    *curves = (Curves){view->buf, (view->shape[0] - 1) / 2, view->shape[1]};
    return fits(curves->ranks > 0 && view->shape[0] % 2 && curves->bends > 0);
}

/* Acceptance given the parent. */
static double chance(const Curves *curves, double prob, Py_ssize_t rank)
{
    /* The part that `prob` lies in begins at the last knot that is not above it. */
    Py_ssize_t part = 0, end = curves->bends;
    while (end - part > 1) {
        Py_ssize_t middle = part + (end - part) / 2;
        if (curves->knots[middle] <= prob)
            part = middle;
        else
            end = middle;
    }
    Py_ssize_t row = rank < curves->ranks ? rank : curves->ranks - 1;
    const double *accepted = curves->knots + (1 + row) * curves->bends;
    const double *slopes = accepted + curves->ranks * curves->bends;
    double found = accepted[part] + slopes[part] * (prob - curves->knots[part]);
    return found < 1.0 ? found : 1.0;
}

static PyObject *reach(Call *call, PyObject *const *args)
{
    Py_buffer *trees, *prob, *parent = NULL;
    Py_ssize_t above, begin;
    Curves curves;
    if (!(trees = take(call, args[0], DOUBLES, 2, PyBUF_WRITABLE)) ||
        !size_from(args[2], trees->shape[1], &begin) ||
        !size_from(args[1], begin, &above) ||
        !(prob = take(call, args[3], DOUBLES, 3, 0)) ||
        (args[4] != Py_None && !(parent = take(call, args[4], INTS, 2, 0))) ||
        !curves_from(call, args[5], &curves))
        return NULL;
    Py_ssize_t batch = trees->shape[0], room = trees->shape[1];
    Py_ssize_t families = prob->shape[1], children = prob->shape[2];
    if (!fits(prob->shape[0] == batch &&
              (!children || families <= (room - begin) / children) &&
              (!parent || (parent->shape[0] == batch && parent->shape[1] == families))))
        return NULL;
    const double *given = prob->buf;
    const long long *place = parent ? parent->buf : NULL;
    int sound = 1;
    for (Py_ssize_t request = 0; request < batch; request++) {
        double *tree = (double *)trees->buf + request * room;
        double *fresh = tree + begin;
        for (Py_ssize_t family = 0; family < families; family++) {
            if (place && (*place < 0 || *place >= begin - above)) {
                refuse(PyExc_IndexError, "a parent outside the level before");
                return NULL;
            }
            double worth = place ? tree[above + *place++] : 1.0;
            for (Py_ssize_t rank = 0; rank < children; rank++, given++) {
                sound &= *given >= 0.0 && *given <= LARGEST_PROBABILITY;
                *fresh++ = chance(&curves, *given, rank) * worth;
            }
        }
    }
    return PyBool_FromLong(sound);
}

/* The `most` largest of `values`, the largest first; there are as many. */
static void best_of(const double *values, Py_ssize_t count, double *best,
                    Py_ssize_t most)
{
    Py_ssize_t held = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (held == most && (!most || values[i] <= best[most - 1]))
            continue;
        Py_ssize_t place = held < most ? held++ : most - 1;
        for (; place > 0 && best[place - 1] < values[i]; place--)
            best[place] = best[place - 1];
        best[place] = values[i];
    }
}

static PyObject *expect(Call *call, PyObject *const *args)
{
    Py_buffer *trees, *per_rank, *out;
    Py_ssize_t begin, end;
    if (!(trees = take(call, args[0], DOUBLES, 2, 0)) ||
        !size_from(args[2], trees->shape[1], &end) ||
        !size_from(args[1], end, &begin) ||
        !(per_rank = take(call, args[3], DOUBLES, 1, 0)) ||
        !(out = take(call, args[4], DOUBLES, 3, PyBUF_WRITABLE)))
        return NULL;
    Py_ssize_t batch = trees->shape[0], room = trees->shape[1];
    Py_ssize_t ranks = per_rank->shape[0];
    Py_ssize_t families = end - begin < ranks ? end - begin : ranks;
    double *parents = scratch(call, families, sizeof *parents);
    if (!parents || !fits(out->shape[0] == 2 && out->shape[1] == batch &&
                          out->shape[2] == end + families * ranks))
        return NULL;
    const double *shares = per_rank->buf;
    double *without = out->buf, *with = without + batch * out->shape[2];
    for (Py_ssize_t request = 0; request < batch; request++) {
        const double *tree = (const double *)trees->buf + request * room;
        for (Py_ssize_t node = 0; node < end; node++)
            *without++ = *with++ = tree[node];
        best_of(tree + begin, end - begin, parents, families);
        for (Py_ssize_t family = 0; family < families; family++)
            for (Py_ssize_t rank = 0; rank < ranks; rank++) {
                *without++ = -INFINITY;
                *with++ = parents[family] * shares[rank];
            }
    }
    Py_RETURN_NONE;
}

/* How many nodes each pool keeps, in which case, and what all claim together. */
typedef struct {
    Py_ssize_t one, kept;
    double claimed;
} Size;

/* What is maximised: claimed / (costs + us) or, by rate, claimed - rate * costs. */
typedef struct {
    const double *costs, *us;
    Py_ssize_t most;
    double start, rate;
    int by_rate;
} Aim;

/* From the arguments costs, start and rate; `us` is the caller's. */
static int aim_from(Call *call, PyObject *costs, PyObject *start, PyObject *rate,
                    Aim *aim)
{
    Py_buffer *view = take(call, costs, DOUBLES, 1, 0);
    if (!view || !fits(view->shape[0] > 0))
        return 0;
    aim->costs = view->buf;
    aim->most = view->shape[0] - 1;
    aim->start = PyFloat_AsDouble(start);
    aim->by_rate = rate != Py_None;
    aim->rate = aim->by_rate ? PyFloat_AsDouble(rate) : 0.0;
    return !PyErr_Occurred();
}

static int find_size(Call *call, const Aim *aim, Reals best, Py_ssize_t cases,
                     Py_ssize_t pools, Py_ssize_t nodes, Size *size)
{
    Py_ssize_t most = aim->most < nodes ? aim->most : nodes;
    double *gains = scratch(call, most, sizeof *gains);
    if (!gains)
        return 0;
    double highest = -INFINITY;
    *size = (Size){0, 0, aim->start};
    for (Py_ssize_t one = 0; one < cases; one++) {
        memset(gains, 0, (most + 1) * sizeof *gains);
        for (Py_ssize_t pool = one * pools + 1; pool <= (one + 1) * pools; pool++)
            for (Py_ssize_t k = 1; k <= most; k++)
                gains[k] += at(best, pool * nodes - k);
        double claimed = aim->start;
        for (Py_ssize_t k = 0; k <= most; k++) {
            claimed += gains[k];
            double value = aim->by_rate ? claimed - aim->rate * aim->costs[k]
                                        : claimed / (aim->costs[k] + aim->us[one]);
            if (value > highest) {
                highest = value;
                *size = (Size){one, k, claimed};
            }
        }
    }
    size->claimed -= aim->start;
    return 1;
}

static PyObject *best_size(Call *call, PyObject *const *args)
{
    Py_buffer *best, *us;
    Aim aim;
    Size size;
    if (!(best = take(call, args[0], FLOATS, 3, 0)) ||
        !aim_from(call, args[1], args[2], args[4], &aim) ||
        !(us = take(call, args[3], DOUBLES, 1, 0)) ||
        !fits(us->shape[0] == best->shape[0]))
        return NULL;
    aim.us = us->buf;
    if (!find_size(call, &aim, reals_of(best), best->shape[0], best->shape[1],
                   best->shape[2], &size))
        return NULL;
    return Py_BuildValue("nnd", size.one, size.kept, size.claimed);
}

/* A node, and what it is ordered by. */
typedef struct {
    double prob;
    Py_ssize_t node;
} Ranked;

static int more_probable(const void *one, const void *other)
{
    const Ranked *a = one, *b = other;
    if (a->prob != b->prob)
        return a->prob > b->prob ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

/* Marks the `room` best nodes of a pool; `least` is the worth of the last of them. */
static void keep_best(Reals ranked, const Py_buffer *ties, Py_ssize_t begin,
                      Py_ssize_t nodes, double least, Py_ssize_t room, Ranked *tied,
                      char *keep)
{
    Py_ssize_t equals = 0;
    for (Py_ssize_t node = begin; node < begin + nodes; node++) {
        double worth = at(ranked, node);
        keep[node] = worth > least;
        room -= keep[node];
        if (worth == least)
            tied[equals++] = (Ranked){ties ? at(reals_of(ties), node) : 0.0, node};
    }
    if (ties && equals > room)
        qsort(tied, equals, sizeof *tied, more_probable);
    for (Py_ssize_t i = 0; i < equals && i < room; i++)
        keep[tied[i].node] = 1;
}

/* Of values in rising order; NaN is last, and compares as false. */
static int probabilities(Reals best, Py_ssize_t pools, Py_ssize_t nodes)
{
    int sound = 1;
    for (Py_ssize_t begin = 0; nodes && begin < pools * nodes; begin += nodes)
        sound &= at(best, begin) >= 0.0 &&
                 at(best, begin + nodes - 1) <= LARGEST_PROBABILITY;
    return sound;
}

static PyObject *cut(Call *call, PyObject *const *args)
{
    Py_buffer *ranked, *best, *keep, *widths, *ties = NULL;
    Aim aim;
    Size size;
    if (!(ranked = take(call, args[0], FLOATS, 2, 0)) ||
        !(best = take(call, args[1], FLOATS, 2, 0)) ||
        (args[2] != Py_None && !(ties = take(call, args[2], FLOATS, 2, 0))) ||
        !aim_from(call, args[3], args[4], args[6], &aim) ||
        !(keep = take(call, args[7], BOOLS, 2, PyBUF_WRITABLE)) ||
        !(widths = take(call, args[8], INTS, 1, PyBUF_WRITABLE)))
        return NULL;
    Py_ssize_t pools = best->shape[0], nodes = best->shape[1];
    Py_ssize_t batch = ranked->shape[0], tree = ranked->shape[1];
    double us = PyFloat_AsDouble(args[5]);
    Ranked *tied = scratch(call, nodes, sizeof *tied);
    if (PyErr_Occurred() || !tied ||
        !fits(pools * nodes == batch * tree && keep->shape[0] == batch &&
              keep->shape[1] == tree && widths->shape[0] == batch &&
              (!ties || (ties->shape[0] == batch && ties->shape[1] == tree))))
        return NULL;
    if (!probabilities(reals_of(best), pools, nodes))
        Py_RETURN_NONE;
    aim.us = &us;
    if (!find_size(call, &aim, reals_of(best), 1, pools, nodes, &size))
        return NULL;
    char *kept = keep->buf;
    for (Py_ssize_t begin = 0; begin < pools * nodes; begin += nodes) {
        Py_ssize_t last = begin + nodes - size.kept;
        double least = size.kept ? at(reals_of(best), last) : INFINITY;
        keep_best(reals_of(ranked), ties, begin, nodes, least, size.kept, tied, kept);
    }
    for (Py_ssize_t request = 0; request < batch; request++) {
        long long width = 1;
        for (Py_ssize_t node = 0; node < tree; node++)
            width += *kept++;
        ((long long *)widths->buf)[request] = width;
    }
    return Py_BuildValue("nd", size.kept, size.claimed);
}

/* The scratch of `follow`, for one tree at a time. */
typedef struct {
    Ranked *order;
    Py_ssize_t *children;
    double *factor;
} Family;

static int follow_tree(const Curves *curves, Reals path_prob, Py_ssize_t begin,
                        const long long *parent, Py_ssize_t nodes, Family own,
                        double *worth)
{
    for (Py_ssize_t node = 0; node < nodes; node++) {
        own.order[node] = (Ranked){at(path_prob, begin + node), node};
        own.children[node] = 0;
        worth[node] = 0.0;
    }
    int sound = 1;
    own.children[nodes] = 0; /* the root's */
    qsort(own.order, nodes, sizeof *own.order, more_probable);
    for (Py_ssize_t i = 0; i < nodes; i++) {
        Py_ssize_t node = own.order[i].node;
        long long above = parent[node] < nodes ? parent[node] : nodes - 1;
        double least = above < 0 ? 1.0 : at(path_prob, begin + above);
        double share = own.order[i].prob / (least > TINY ? least : TINY);
        sound &= !(own.order[i].prob > 0.0 &&
                   (parent[node] < -1 || parent[node] >= nodes));
        Py_ssize_t rank = own.children[above < 0 ? nodes : above]++;
        own.factor[node] = chance(curves, share < 1.0 ? share : 1.0, rank);
    }
    /* A pass is right at least one level further, and the last changes nothing. */
    int changed = 1;
    for (Py_ssize_t pass = 0; changed && pass <= nodes; pass++) {
        changed = 0;
        for (Py_ssize_t node = 0; node < nodes; node++) {
            long long above = parent[node] < nodes ? parent[node] : nodes - 1;
            double further = own.factor[node] * (above < 0 ? 1.0 : worth[above]);
            changed |= further != worth[node];
            worth[node] = further;
        }
    }
    return sound;
}

static PyObject *follow(Call *call, PyObject *const *args)
{
    Py_buffer *path_prob, *parent, *worth;
    Curves curves;
    if (!(path_prob = take(call, args[0], FLOATS, 2, 0)) ||
        !(parent = take(call, args[1], INTS, 2, 0)) ||
        !curves_from(call, args[2], &curves) ||
        !(worth = take(call, args[3], DOUBLES, 2, PyBUF_WRITABLE)))
        return NULL;
    Py_ssize_t batch = path_prob->shape[0], nodes = path_prob->shape[1];
    if (!fits(parent->shape[0] == batch && parent->shape[1] == nodes &&
              worth->shape[0] == batch && worth->shape[1] == nodes))
        return NULL;
    Family own = {scratch(call, nodes, sizeof *own.order),
                  scratch(call, nodes, sizeof *own.children),
                  scratch(call, nodes, sizeof *own.factor)};
    if (!own.order || !own.children || !own.factor)
        return NULL;
    int sound = 1;
    for (Py_ssize_t begin = 0; begin < batch * nodes; begin += nodes)
        sound &= follow_tree(&curves, reals_of(path_prob), begin,
                             (const long long *)parent->buf + begin, nodes, own,
                             (double *)worth->buf + begin);
    return PyBool_FromLong(sound);
}

/* As Python calls it: with so many arguments, releasing whatever was held. */
#define CALLED(name, wanted)                                                           \
    static PyObject *call_##name(PyObject *Py_UNUSED(self), PyObject *const *args,     \
                                 Py_ssize_t count)                                     \
    {                                                                                  \
        Call call = {.viewed = 0, .scratched = 0};                                     \
        PyObject *result = NULL;                                                       \
        if (count == wanted)                                                           \
            result = name(&call, args);                                                \
        else                                                                           \
            PyErr_SetString(PyExc_TypeError, #name " takes " #wanted " arguments");    \
        release(&call);                                                                \
        return result;                                                                 \
    }

CALLED(reach, 6)
CALLED(expect, 5)
CALLED(best_size, 5)
CALLED(cut, 9)
CALLED(follow, 4)

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))call_##name, METH_FASTCALL, 0}

static PyMethodDef methods[] = {METHOD(reach), METHOD(expect), METHOD(best_size),
                                METHOD(cut), METHOD(follow), {0, 0, 0, 0}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_scan", "See scan_numpy.py.", 0, methods, slots, 0, 0, 0,
};

PyMODINIT_FUNC PyInit__scan(void)
{
    return PyModuleDef_Init(&module);
}
