/* The loops of a decision, compiled: the functions of scan_numpy.py, bit for bit.

   What each means is said there. All arrays are C-contiguous, of doubles, 64-bit
   integers or bools; shapes come as integers, and are checked against the buffers. */

#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST_PROBABILITY (1.0 + 1e-5)
#define TINY 1e-300
#define HOLDS(view, count) /* values of 8 bytes; 8 * count must not wrap */          \
    ((view)->len % 8 == 0 && (view)->len / 8 == (count))
typedef Py_ssize_t Size;

/* A product of sizes; -1, which no buffer holds, where it could wrap. */
static long long times(long long a, long long b)
{
    return a < 0 || a > INT32_MAX || b < 0 || b > INT32_MAX ? -1 : a * b;
}

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

/* Whether curves have knots, and acceptance and slopes of so many ranks. */
static int are_curves(const Py_buffer *curves, Size ranks)
{
    Size values = curves->len / 8;
    return values && ranks >= 0 && ranks <= (values - 1) / 2 && curves->len % 8 == 0;
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
        above < 0 || begin < above || begin > room ||
        times(families, children) > room - begin || !HOLDS(v, times(batch, room)) ||
        !HOLDS(v + 1, times(batch, times(families, children))) ||
        (v[2].buf && !HOLDS(v + 2, times(batch, families))) ||
        !are_curves(v + 3, ranks))
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

/* Scores of each pool that ascend, `ranked` of its `nodes`; of the others none is above
   `cut`. */
typedef struct {
    Py_buffer *array;
    Size nodes, pools, ranked;
    double cut;
} Ranking;

/* Sorts what is ranked of a single pool. */
static void sort_ranked(const Ranking *best)
{
    double *values = best->array->buf;
    if (best->ranked > 64) { /* Numpy sorts faster. */
        PyObject *part = PySequence_GetSlice(best->array->obj, 0, best->ranked);
        Py_XDECREF(part ? PyObject_CallMethod(part, "sort", NULL) : NULL);
        Py_XDECREF(part);
        return;
    }
    for (Size i = 1, left; i < best->ranked; i++) {
        double value = values[left = i];
        for (; left > 0 && values[left - 1] > value; left--)
            values[left] = values[left - 1];
        values[left] = value;
    }
}

typedef struct {
    const Py_buffer *cost;
    double base, us, rate;
} Objective;

static inline double value_of(const Objective *of, double tokens, double cost)
{
    return isnan(of->rate) ? tokens / (cost + of->us) : tokens - of->rate * cost;
}

/* A score that hardly pays anywhere: nodes up to it are ranked only where `find_size`
   asks for them. It is below what a node costs on average, up to any of 16 sizes, at
   the value without nodes; -1 where nodes cost nothing. */
static double find_cut(const Objective *of)
{
    const double *cost = of->cost->buf;
    Size sizes = of->cost->len / 8, step = sizes / 16 + 1;
    double slope = INFINITY, next;
    for (Size k = step; k < sizes; k += step)
        slope = (next = (cost[k] - cost[0]) / k) < slope ? next : slope;
    slope *= 0.75 * (isnan(of->rate) ? of->base / (cost[0] + of->us) : of->rate);
    return slope > 0.0 ? slope : -1.0;
}

enum { NONE = -1, UNKNOWN = -2, CROWDED = -3 };

/* Nodes that each pool keeps and the sum of their scores; NONE where no value is above
   `highest`; UNKNOWN where nodes that are not ranked could reach a higher one. */
static Size find_size(const Ranking *best, const Objective *of, double *highest,
                      double *expected)
{
    const double *cost = of->cost->buf, *values = best->array->buf;
    Size sizes = of->cost->len / 8, kept = NONE, k = 0;
    double tokens = of->base, value;
    if (sizes > best->nodes + 1)
        sizes = best->nodes + 1;
    for (; k < sizes && k <= best->ranked; k++) {
        double gain = 0.0;
        for (Size pool = 1; k && pool <= best->pools; pool++)
            gain += values[pool * best->ranked - k];
        if ((value = value_of(of, tokens += gain, cost[k])) > *highest)
            *highest = value, kept = k, *expected = tokens - of->base;
    }
    for (; k < sizes; k++) { /* 1e-9 is far more than sums are rounded. */
        double most = (tokens + best->cut * (k - best->ranked)) * (1.0 + 1e-9);
        if (isnan(of->rate) ? most > *highest * (cost[k] + of->us)
                            : most - of->rate * cost[k] > *highest)
            return UNKNOWN;
    }
    return kept;
}

typedef struct {
    double *trees, *per_rank;
    Size begin, end, batch, room, families, ranks;
} Level;

/* Writes the nodes above `cut`, and those of the expected children of the best
   `families` of the last level; returns how many, and the most of a request. */
static Size expect_level(const Level *of, double cut, double *out, double *best,
                         Size *most)
{
    Size count = *most = 0;
    for (Size request = 0; request < of->batch; request++) {
        const double *tree = of->trees + request * of->room;
        Size before = count;
        for (Size node = 0; node < of->end; node++) /* without a branch on data */
            out[count] = tree[node], count += tree[node] > cut;
        for (Size i = 0; i < of->families; i++)
            best[i] = -INFINITY;
        for (Size node = of->begin; of->families && node < of->end; node++) {
            double less = tree[node];
            for (Size i = 0; less > cut && i < of->families; i++) {
                double held = best[i];
                best[i] = held > less ? held : less;
                less = held > less ? less : held;
            }
        }
        for (Size parent = 0; parent < of->families && best[parent] > cut; parent++)
            for (Size rank = 0; rank < of->ranks; rank++) {
                out[count] = best[parent] * of->per_rank[rank];
                count += out[count] > cut;
            }
        if (count - before > *most)
            *most = count - before;
    }
    return count;
}

/* `find_size` of a level; CROWDED where it keeps more than `limit` of a request. */
static Size size_of_level(const Level *level, Ranking *best, const Objective *of,
                          Size limit, double *highest, double *room)
{
    double *values = best->array->buf, expected;
    Size most;
    best->nodes = level->batch * (level->end + level->families * level->ranks);
    best->ranked = expect_level(level, best->cut, values, room, &most);
    sort_ranked(best);
    Size kept = find_size(best, of, highest, &expected);
    if (kept <= limit || most <= limit)
        return kept;
    double least = values[best->ranked - kept];
    expect_level(level, nextafter(least, -INFINITY), values, room, &most);
    return most > limit ? CROWDED : kept;
}

static PyObject *level_pays(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer v[4] = {{0}};
    Size limit, pools, kept = NONE;
    double us, further_us, highest;
    Level level = {0};
    Objective of = {v + 2, .rate = NAN};
    if (!PyArg_ParseTuple(args, "y*nny*y*dddnnw*nn", v, &level.begin, &level.end, v + 1,
                          v + 2, &of.base, &us, &further_us, &limit, &pools, v + 3,
                          &level.batch, &level.room))
        return done(NULL, v, 4);
    level.trees = v[0].buf, level.per_rank = v[1].buf, level.ranks = v[1].len / 8;
    Size fresh = level.end - level.begin;
    Size families = fresh < level.ranks ? fresh : level.ranks;
    double *room = malloc((families + 1) * sizeof *room);
    int fits = room && level.begin >= 0 && fresh >= 0 && level.end <= level.room &&
               HOLDS(v, times(level.batch, level.room)) && HOLDS(v + 1, level.ranks) &&
               HOLDS(v + 3, times(level.batch,
                                  level.end + times(families, level.ranks))) &&
               v[2].len >= 8 && (pools == 1 || pools == level.batch);
    of.us = us;
    Ranking best = {v + 3, .pools = 1, .cut = fits ? find_cut(&of) : 0.0};
    do {
        level.families = 0, of.us = us, highest = -INFINITY;
        if (!fits || pools != 1)
            break;
        kept = size_of_level(&level, &best, &of, limit, &highest, room);
        level.families = families, of.us = further_us;
        if (kept >= 0)
            kept = size_of_level(&level, &best, &of, limit, &highest, room);
        best.cut = -1.0;
    } while (kept == UNKNOWN);
    free(room);
    if (pools != 1 || kept == CROWDED)
        return done(fits ? Py_NewRef(Py_None) : NULL, v, 4);
    return done(fits ? PyBool_FromLong(kept >= 0) : NULL, v, 4);
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
    double expected = 0.0, highest;
    Size batch, pools, count;
    Objective of = {v + 3};
    if (!PyArg_ParseTuple(args, "y*w*z*y*dddw*w*nn", v, v + 1, v + 2, v + 3, &of.base,
                          &of.us, &of.rate, v + 4, v + 5, &batch, &pools) ||
        batch < 1 || pools < 1 || (count = v[4].len) % batch || count % pools ||
        !HOLDS(v, count) || !HOLDS(v + 1, count) || v[3].len < 8 || !HOLDS(v + 5, batch) ||
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
    Ranking best = {v + 1, nodes, pools, nodes, pools > 1 ? -1.0 : find_cut(&of)};
    Size kept = UNKNOWN;
    double *values = v[1].buf;
    for (; kept == UNKNOWN; best.cut = -1.0) {
        highest = -INFINITY;
        for (Size node = best.ranked = 0; pools == 1 && node < nodes; node++)
            values[best.ranked] = scores[node], best.ranked += scores[node] > best.cut;
        if (pools == 1)
            sort_ranked(&best);
        else
            best.ranked = nodes;
        kept = find_size(&best, &of, &highest, &expected);
    }
    char *keep = v[4].buf;
    for (Size low = 0; low < count; low += nodes) {
        double least = kept > 0 ? values[low + best.ranked - kept] : INFINITY;
        Size equals = 0, room = kept;
        for (Size node = low; node < low + nodes; node++) {
            room -= keep[node] = scores[node] > least;
            if (scores[node] == least)
                tied[equals++] = (Ranked){ties ? ties[node] : 0.0, node};
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
        !HOLDS(v, times(batch, nodes)) || !HOLDS(v + 1, times(batch, nodes)) ||
        !HOLDS(v + 3, times(batch, nodes)) || !are_curves(v + 2, ranks))
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
        !HOLDS(v, times(batch, nodes)) || !HOLDS(v + 1, times(batch, nodes)))
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
