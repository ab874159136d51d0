/* The loops of a decision, compiled: the functions of scan_numpy.py, bit for bit.

   What each means is said there. All arrays are C-contiguous, of doubles, 64-bit
   integers or bools; shapes come as integers, and are checked against the buffers. */

#include <Python.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST_PROBABILITY (1.0 + 1e-5)
#define TINY 1e-300
#define HOLDS(view, count) /* values of 8 bytes; 8 * count must not wrap */          \
    ((view)->len % 8 == 0 && (view)->len / 8 == (count))
typedef Py_ssize_t Size;

/* Releases the buffers of a call, and returns its result. */
static PyObject *done(PyObject *result, Py_buffer *views, int count)
{
    while (count--)
        if (views[count].obj)
            PyBuffer_Release(&views[count]);
    if (PyErr_Occurred())
        Py_CLEAR(result);
    else if (!result)
        PyErr_SetString(PyExc_ValueError, "shapes that do not fit");
    return result;
}

/* Acceptance given the parent. Curves are knots, and by rank acceptance and slopes. */
static inline double chance(const Py_buffer *curves, Size ranks, double prob, Size rank)
{
    const double *knots = curves->buf;
    Size bends = curves->len / 8 / (1 + 2 * ranks), part = 0;
    for (Size left = bends; left > 1; left -= left / 2) /* without a branch on data */
        part += knots[part + left / 2] <= prob ? left / 2 : 0; /* last not above */
    const double *accepted = knots + (rank < ranks ? rank + 1 : ranks) * bends + part;
    double found = *accepted + accepted[ranks * bends] * (prob - knots[part]);
    return found < 1.0 ? found : 1.0;
}

static PyObject *score_level(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer v[4] = {{0}};
    Size above, begin, batch, room, families, children, ranks;
    if (!PyArg_ParseTuple(args, "w*nny*z*y*nnnnn", v, &above, &begin, v + 1, v + 2,
                          v + 3, &batch, &room, &families, &children, &ranks) ||
        above < 0 || begin < above || begin + families * children > room ||
        !HOLDS(v, batch * room) || !HOLDS(v + 1, batch * families * children) ||
        (v[2].buf && !HOLDS(v + 2, batch * families)))
        return done(NULL, v, 4);
    const double *prob = v[1].buf;
    const long long *place = v[2].buf;
    for (Size request = 0; request < batch; request++) {
        double *tree = (double *)v[0].buf + request * room, *out = tree + begin;
        for (Size family = 0; family < families; family++) {
            if (place && (*place < 0 || *place >= begin - above))
                return done(PyUnicode_FromString("parent"), v, 4);
            double parent = place ? tree[above + *place++] : 1.0;
            for (Size rank = 0; rank < children; rank++, prob++) {
                if (!(*prob >= 0.0 && *prob <= LARGEST_PROBABILITY))
                    return done(PyUnicode_FromString("prob"), v, 4);
                *out++ = chance(v + 3, ranks, *prob, rank) * parent;
            }
        }
    }
    return done(Py_NewRef(Py_None), v, 4);
}

/* Nodes in pools, whose best `ranked` ascend at the end of each; and in a single pool,
   places of which none holds less than one before it: an incremental quicksort. */
typedef struct {
    Py_buffer *array;
    Size nodes, pools, ranked, lows[64];
    int depth;
} Ranking;

static Size split(double *values, Size low, Size end, double pivot, int keeps_equal)
{
    for (Size i = low; i < end; i++) { /* without a branch on data */
        double value = values[i];
        values[i] = values[low];
        values[low] = value;
        low += (value < pivot) | (keeps_equal & (value == pivot));
    }
    return low;
}

static void rank_more(Ranking *best)
{
    double *values = best->array->buf;
    Size low = 0, left, end = best->nodes - best->ranked;
    if (best->ranked > 256) { /* Numpy sorts faster. */
        Py_XDECREF(PyObject_CallMethod(best->array->obj, "sort", NULL));
        best->ranked = best->nodes;
        return;
    }
    while (end - (low = best->lows[best->depth]) > 16 && best->depth < 63) {
        double a = values[low], b = values[(low + end) / 2], c = values[end - 1];
        double pivot = fmax(fmin(a, b), fmin(fmax(a, b), c));
        left = split(values, low, end, pivot, 1);
        if (left == end && (left = split(values, low, end, pivot, 0)) == low)
            break; /* All are equal. */
        best->lows[++best->depth] = left;
    }
    for (Size i = low + 1; i < end; i++) {
        double value = values[left = i];
        for (; left > low && values[left - 1] > value; left--)
            values[left] = values[left - 1];
        values[left] = value;
    }
    best->ranked = best->nodes - low;
    best->depth -= best->depth > 0;
}

typedef struct {
    const Py_buffer *cost;
    double base, us, rate;
} Objective;

static inline double value_of(const Objective *of, double tokens, double cost)
{
    return isnan(of->rate) ? tokens / (cost + of->us) : tokens - of->rate * cost;
}

/* Nodes that each pool keeps and the sum of their scores; -1 where no value is above
   `highest`. Now and then the loop bounds all larger sizes: every further node
   has the score of the last ranked one. It ends if no bound is above `highest`. */
static Size find_size(Ranking *best, const Objective *of, double *highest,
                      double *expected)
{
    const double *cost = of->cost->buf, *values = best->array->buf;
    Size sizes = of->cost->len / 8, kept = -1;
    double tokens = of->base, value;
    for (Size k = 0, next = 16; k < sizes && k <= best->nodes; k++) {
        if (k > best->ranked && k > next) {
            double most = tokens, least = values[best->nodes + 1 - k];
            Size more = k;
            while (more < sizes && value_of(of, most += least, cost[more]) <= *highest)
                more++;
            if (more == sizes)
                break;
            next = 4 * k;
        }
        if (k > best->ranked)
            rank_more(best);
        double gain = 0.0;
        for (Size pool = 1; k && pool <= best->pools; pool++)
            gain += values[pool * best->nodes - k];
        if ((value = value_of(of, tokens += gain, cost[k])) > *highest)
            *highest = value, kept = k, *expected = tokens - of->base;
    }
    return kept;
}

typedef struct {
    double *trees, *per_rank;
    Size begin, end, batch, room, families, ranks;
} Level;

/* Writes nodes, and the expected children of the best `families` of the last level. */
static void expect_level(const Level *of, double *out, double *best)
{
    for (Size request = 0; request < of->batch; request++) {
        const double *tree = of->trees + request * of->room;
        memcpy(out, tree, of->end * sizeof *out);
        out += of->end;
        for (Size i = 0; i < of->families; i++)
            best[i] = -INFINITY;
        for (Size node = of->begin; of->families && node < of->end; node++) {
            double less = tree[node];
            for (Size i = 0; i < of->families; i++) {
                double held = best[i];
                best[i] = held > less ? held : less;
                less = held > less ? less : held;
            }
        }
        for (Size parent = 0; parent < of->families; parent++)
            for (Size rank = 0; rank < of->ranks; rank++)
                *out++ = best[parent] * of->per_rank[rank];
    }
}

static PyObject *level_pays(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer v[5] = {{0}};
    Size limit, pools, kept = -1;
    double further_us, expected, highest = -INFINITY;
    Level level = {0};
    Objective of = {v + 2, .rate = NAN};
    if (!PyArg_ParseTuple(args, "y*nny*y*dddnnw*w*nn", v, &level.begin, &level.end,
                          v + 1, v + 2, &of.base, &of.us, &further_us, &limit, &pools,
                          v + 3, v + 4, &level.batch, &level.room))
        return done(NULL, v, 5);
    level.trees = v[0].buf, level.per_rank = v[1].buf, level.ranks = v[1].len / 8;
    Size fresh = level.end - level.begin, row = level.end;
    Size families = fresh < level.ranks ? fresh : level.ranks;
    double *room = malloc((families + 1) * sizeof *room);
    int crowded = pools != 1;
    int fits = room && level.begin >= 0 && fresh >= 0 && level.end <= level.room &&
               HOLDS(v, level.batch * level.room) && HOLDS(v + 1, level.ranks) &&
               v[2].len && (!crowded || pools == level.batch);
    for (int i = 3; fits && i < 5; i++) {
        if (i == 4)
            row += (level.families = families) * level.ranks, of.us = further_us;
        double *scores = v[i].buf, least;
        Ranking best = {v + i, level.batch * row, 1};
        if (!(fits = HOLDS(v + i, best.nodes)) || crowded)
            break;
        expect_level(&level, scores, room);
        if ((kept = find_size(&best, &of, &highest, &expected)) <= limit)
            continue;
        least = scores[best.nodes - kept];
        expect_level(&level, scores, room);
        for (Size end = row, node = 0; end <= best.nodes; end += row) {
            Size held = 0;
            for (; node < end; node++)
                held += scores[node] >= least;
            crowded |= held > limit;
        }
    }
    free(room);
    if (crowded) /* by more nodes of a request than it can keep, or by pools */
        return done(fits ? Py_NewRef(Py_None) : NULL, v, 5);
    return done(fits ? PyBool_FromLong(kept >= 0) : NULL, v, 5);
}

typedef struct {
    double score;
    Size node;
} Ranked;

static int best_first(const void *one, const void *other)
{
    const Ranked *a = one, *b = other;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

static PyObject *select_nodes(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer v[6] = {{0}};
    double expected = 0.0, highest = -INFINITY;
    Size batch, pools, count;
    Objective of = {v + 3};
    if (!PyArg_ParseTuple(args, "y*w*z*y*dddw*w*nn", v, v + 1, v + 2, v + 3, &of.base,
                          &of.us, &of.rate, v + 4, v + 5, &batch, &pools) ||
        batch < 1 || pools < 1 || (count = v[4].len) % batch || count % pools ||
        !HOLDS(v, count) || !HOLDS(v + 1, count) || !v[3].len || !HOLDS(v + 5, batch) ||
        (v[2].buf && !HOLDS(v + 2, count)))
        return done(NULL, v, 6);
    const double *scores = v[0].buf, *ties = v[2].buf;
    Size nodes = count / pools, wrong = 0;
    for (Size node = 0; node < count; node++) /* NaN compares as false. */
        wrong |= !((scores[node] >= 0.0) & (scores[node] <= LARGEST_PROBABILITY));
    if (wrong)
        return done(Py_NewRef(Py_None), v, 6);
    Ranked *tied = malloc((nodes + 1) * sizeof *tied);
    if (!tied)
        return done(PyErr_NoMemory(), v, 6);
    Ranking best = {v + 1, nodes, pools, pools > 1 ? nodes : 0};
    if (pools == 1)
        memcpy(v[1].buf, scores, nodes * sizeof *scores);
    Size kept = find_size(&best, &of, &highest, &expected);
    char *keep = v[4].buf;
    for (Size low = 0; low < count; low += nodes) {
        double least = kept > 0 ? ((double *)v[1].buf)[low + nodes - kept] : INFINITY;
        Size equals = 0, room = kept;
        for (Size node = low; node < low + nodes; node++) {
            room -= keep[node] = scores[node] > least;
            tied[equals] = (Ranked){ties ? ties[node] : 0.0, node};
            equals += scores[node] == least;
        }
        if (ties && equals > room)
            qsort(tied, equals, sizeof *tied, best_first);
        for (Size i = 0; i < equals && i < room; i++)
            keep[tied[i].node] = 1;
    }
    free(tied);
    for (Size request = 0; request < batch; request++) {
        long long *width = (long long *)v[5].buf + request;
        *width = 1;
        for (Size node = 0; node < count / batch; node++)
            *width += *keep++;
    }
    return done(Py_BuildValue("nd", kept > 0 ? kept : 0, expected), v, 6);
}

static PyObject *score_by_parent(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer v[4] = {{0}};
    Size batch, nodes, ranks;
    if (!PyArg_ParseTuple(args, "y*y*y*w*nnn", v, v + 1, v + 2, v + 3, &batch, &nodes,
                          &ranks) ||
        !HOLDS(v, batch * nodes) || !HOLDS(v + 1, batch * nodes) ||
        !HOLDS(v + 3, batch * nodes))
        return done(NULL, v, 4);
    const double *prob = v[0].buf;
    const long long *parent = v[1].buf;
    double *score = v[3].buf;
    struct { double least; Size count; } *children;
    if (!(children = malloc((nodes + 1) * sizeof *children)))
        return done(PyErr_NoMemory(), v, 4);
    children++; /* -1: the root's */
    int in_order = 1;
    for (; batch-- && in_order; prob += nodes, parent += nodes, score += nodes) {
        for (Size node = -1; node < nodes; node++)
            children[node].count = 0,
            children[node].least = node < 0 ? INFINITY : prob[node];
        for (Size node = 0; node < nodes && in_order; node++) {
            long long above = parent[node];
            score[node] = 0.0;
            if (!(prob[node] > 0.0) || above == node)
                continue;
            if (!(in_order = above >= -1 && above < node &&
                             prob[node] <= children[above].least))
                break;
            children[above].least = prob[node];
            double share = prob[node] / (above < 0 ? 1.0 : fmax(prob[above], TINY));
            share = chance(v + 2, ranks, share < 1.0 ? share : 1.0,
                           children[above].count++);
            score[node] = share * (above < 0 ? 1.0 : score[above]);
        }
    }
    free(children - 1);
    return done(PyBool_FromLong(in_order), v, 4);
}

static PyObject *rises(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer v[2] = {{0}};
    Size batch, nodes, found = 0;
    if (!PyArg_ParseTuple(args, "y*y*nn", v, v + 1, &batch, &nodes) ||
        !HOLDS(v, batch * nodes) || !HOLDS(v + 1, batch * nodes))
        return done(NULL, v, 2);
    const double *prob = v[0].buf;
    const long long *parent = v[1].buf;
    for (; batch-- && !found; prob += nodes, parent += nodes)
        for (Size node = 0; node < nodes && !found; node++)
            found = prob[node] > 0.0 && parent[node] != -1 &&
                    (parent[node] < 0 || parent[node] >= node ||
                     prob[node] > prob[parent[node]]);
    return done(PyBool_FromLong(found), v, 2);
}

#define METHOD(name) {#name, name, METH_VARARGS, 0}
static PyMethodDef methods[] = {METHOD(score_level), METHOD(level_pays),
                                METHOD(select_nodes), METHOD(score_by_parent),
                                METHOD(rises), {0, 0, 0, 0}};
static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_scan", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__scan(void)
{
    return PyModule_Create(&module);
}
