/* The loops of a decision, compiled: the functions of scan_numpy.py, bit for bit.

   What each means is said there. All arrays are C-contiguous, of doubles, 64-bit
   integers or bools; shapes come as integers, and are checked against the buffers. */

#include <Python.h>
#include <math.h>
#include <stdlib.h>

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
    if (!result && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "shapes that do not fit");
    return result;
}

/* Acceptance given the parent. Curves are knots, and by rank acceptance and slopes. */
static inline double chance(const Py_buffer *curves, Size ranks, double prob, Size rank)
{
    const double *knots = curves->buf;
    Size part = 0, bends = curves->len / 8 / (1 + 2 * ranks), end = bends;
    while (end - part > 1) { /* Find the last knot that is not above `prob`. */
        Size middle = part + (end - part) / 2;
        if (knots[middle] <= prob)
            part = middle;
        else
            end = middle;
    }
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

static PyObject *expect_level(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer v[3] = {{0}};
    Size begin, end, batch, room, families, ranks;
    if (!PyArg_ParseTuple(args, "y*nny*w*nnnn", v, &begin, &end, v + 1, v + 2, &batch,
                          &room, &families, &ranks) ||
        begin < 0 || families < 0 || begin + families > end || end > room ||
        !HOLDS(v, batch * room) || !HOLDS(v + 1, ranks) ||
        !HOLDS(v + 2, 2 * batch * (end + families * ranks)))
        return done(NULL, v, 3);
    double *best = malloc((families + 1) * sizeof *best);
    if (!best)
        return done(PyErr_NoMemory(), v, 3);
    const double *per_rank = v[1].buf;
    double *without = v[2].buf, *with = without + v[2].len / 16;
    for (Size request = 0; request < batch; request++) {
        const double *tree = (double *)v[0].buf + request * room;
        for (Size node = 0; node < end; node++)
            *without++ = *with++ = tree[node];
        for (Size node = begin, held = 0; node < end; node++) {
            Size place = held;
            for (; place > 0 && best[place - 1] < tree[node]; place--)
                best[place] = best[place - 1];
            best[place] = tree[node];
            held += held < families;
        }
        for (Size child = 0; child < families * ranks; child++) {
            *without++ = -INFINITY;
            *with++ = best[child / ranks] * per_rank[child % ranks];
        }
    }
    free(best);
    return done(Py_NewRef(Py_None), v, 3);
}

/* Nodes that each pool keeps in the best case, the case, and the sum of their scores. */
static Size find_size(const double *best, Size cases, Size pools, Size nodes,
                      const double *cost, Size sizes, double base, const double *us,
                      double rate, Size *one, double *expected)
{
    double highest = -INFINITY;
    Size kept = 0;
    for (Size i = 0; i < cases; i++, best += pools * nodes) {
        double tokens = base;
        for (Size k = 0; k < sizes && k <= nodes; k++) {
            double gain = 0.0;
            for (Size pool = 1; k && pool <= pools; pool++)
                gain += best[pool * nodes - k];
            tokens += gain;
            double value =
                isnan(rate) ? tokens / (cost[k] + us[i]) : tokens - rate * cost[k];
            if (value > highest)
                highest = value, *one = i, kept = k, *expected = tokens - base;
        }
    }
    return kept;
}

static PyObject *best_case(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer v[3] = {{0}};
    double base, expected;
    Size cases, pools, nodes, one = 0;
    if (!PyArg_ParseTuple(args, "y*y*dy*nnn", v, v + 1, &base, v + 2, &cases, &pools,
                          &nodes) ||
        !HOLDS(v, cases * pools * nodes) || !v[1].len || !HOLDS(v + 2, cases))
        return done(NULL, v, 3);
    find_size(v[0].buf, cases, pools, nodes, v[1].buf, v[1].len / 8, base, v[2].buf,
              NAN, &one, &expected);
    return done(PyLong_FromSsize_t(one), v, 3);
}

static PyObject *select_nodes(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer v[6] = {{0}};
    double base, us, rate, expected = 0.0;
    Size batch, pools, one, count;
    if (!PyArg_ParseTuple(args, "y*y*z*y*dddw*w*nn", v, v + 1, v + 2, v + 3, &base,
                          &us, &rate, v + 4, v + 5, &batch, &pools) ||
        batch < 1 || pools < 1 || (count = v[4].len) % batch || count % pools ||
        !HOLDS(v, count) || !HOLDS(v + 1, count) || !v[3].len || !HOLDS(v + 5, batch) ||
        (v[2].buf && !HOLDS(v + 2, count)))
        return done(NULL, v, 6);
    const double *scores = v[0].buf, *best = v[1].buf, *ties = v[2].buf;
    Size nodes = count / pools;
    for (Size low = 0; low < count; low += nodes) /* NaN sorts last. */
        if (!(best[low] >= 0.0 && best[low + nodes - 1] <= LARGEST_PROBABILITY))
            return done(Py_NewRef(Py_None), v, 6);
    Ranked *tied = malloc((nodes + 1) * sizeof *tied);
    if (!tied)
        return done(PyErr_NoMemory(), v, 6);
    Size kept = find_size(best, 1, pools, nodes, v[3].buf, v[3].len / 8, base, &us,
                          rate, &one, &expected);
    char *keep = v[4].buf;
    for (Size low = 0; low < count; low += nodes) {
        double least = kept ? best[low + nodes - kept] : INFINITY;
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
    return done(Py_BuildValue("nd", kept, expected), v, 6);
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
    Ranked *order = malloc((nodes + 1) * (sizeof *order + sizeof(Size)));
    if (!order)
        return done(PyErr_NoMemory(), v, 4);
    Size *children = (Size *)(order + nodes + 1) + 1; /* -1: the root's */
    int sound = 1;
    for (; batch-- && sound; prob += nodes, parent += nodes, score += nodes) {
        for (Size node = 0; node < nodes; node++) {
            order[node] = (Ranked){prob[node], node};
            children[node] = 0;
            score[node] = 0.0;
        }
        children[-1] = 0;
        qsort(order, nodes, sizeof *order, best_first);
        for (Size i = 0; i < nodes && order[i].score > 0.0; i++) {
            long long node = order[i].node, above = parent[node];
            if (!(sound = above >= -1 && above < nodes))
                break;
            double share = prob[node] / (above < 0 ? 1.0 : fmax(prob[above], TINY));
            share = chance(v + 2, ranks, share < 1.0 ? share : 1.0, children[above]++);
            score[node] = share * (above < 0 ? 1.0 : score[above]);
        }
    }
    free(order);
    return done(PyBool_FromLong(sound), v, 4);
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
static PyMethodDef methods[] = {METHOD(score_level), METHOD(expect_level),
                                METHOD(best_case), METHOD(select_nodes),
                                METHOD(score_by_parent), METHOD(rises), {0, 0, 0, 0}};
static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_scan", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__scan(void)
{
    return PyModule_Create(&module);
}
