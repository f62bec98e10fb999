/* From logits to tokens, for all rows of a step: changes to the logits, filters and a draw, row by row.
 *
 * What the filters keep are the probabilities not less than some value. It is found by bisection over the bits of the
 * numbers, which are ordered as the numbers are: each pass adds up what is not less than a value, and once few numbers
 * are left in between, only these are gone through. So nothing is sorted, and a flat distribution costs little more.
 *
 * Probabilities are relative to the greatest one. How this library is loaded and called is told in native.py.
 */

#include <float.h>

#include "vectors.h"

/* Some compilers' omp.h brings a function `select` of the system's. */
int omp_get_thread_num(void);

/* Numbers per block of the two-level sums: what is drawn lies in the block at which the sum of blocks passes. */
enum { BLOCK = 8 * WIDTH };

/* Numbers of a vector of results that do not wait for each other. */
enum { CHAINS = 4 };

/* One number in so many: few enough to copy them. */
enum { SPARSE = 16 };

/* One block in so many is looked at first, of so many numbers or more. */
enum { SAMPLED = 16, LONG = 16 * 1024 };

enum { NOT_FINITE = -1, NOTHING_LEFT = -2, ADJUSTED_NOT_FINITE = -3 };

/* What stands for how often a token was put out once it has been penalized. */
static const uint32_t PENALIZED = UINT32_MAX;

/* How the next token of a slot's occupant is drawn. */
typedef struct {
    double temperature, min_p, top_p, repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, min_tokens, prompt_length, length;
    int64_t num_allowed, num_biased, num_ends, num_words;
    const int64_t *ids; /* the allowed, the biased, those that end an item, and each bad word after its length */
    const float *biases;
    const int32_t *tokens; /* prompt and output */
} sampling_line;

/* What some probabilities are together. */
typedef struct {
    double mass;
    int64_t count;
} portion;

/* Where a thread works. */
typedef struct {
    float *row;      /* in whole blocks */
    float *masses;   /* of each block */
    float *groups;   /* for an eighth of the row, in whole blocks */
    float *room;     /* as much again */
    uint32_t *times; /* for each token */
} workplace;

static int64_t whole_blocks(int64_t width) { return (width + BLOCK - 1) / BLOCK * BLOCK; }

ALWAYS_INLINE vec where(ivec mask, vec x) { return (vec)(mask & (ivec)x); }

/* NaN if any is. Also the greatest number of each group: of WIDTH, each WIDTH apart, of a block. The width is of whole
 * blocks, here and in all that follows. */
CLONED static float greatest(const float *x, int64_t width, float *groups) {
    vec best = splat(-INFINITY);
    ivec unordered = {0};
    for (int64_t i = 0; i < width; i += BLOCK, groups += WIDTH) {
        vec a = load(x + i), b = load(x + i + WIDTH);
        unordered |= (a != a) | (b != b);
        for (int j = 2 * WIDTH; j < BLOCK; j += 2 * WIDTH) {
            const vec c = load(x + i + j), d = load(x + i + j + WIDTH);
            unordered |= (c != c) | (d != d);
            a = select(c > a, c, a);
            b = select(d > b, d, b);
        }
        a = select(a > b, a, b);
        store(groups, a);
        best = select(a > best, a, best);
    }
    float found = -INFINITY;
    for (int i = 0; i < WIDTH; i++) {
        if (unordered[i]) return NAN;
        found = best[i] > found ? best[i] : found;
    }
    return found;
}

/* The first place of a number that is there. */
CLONED static int64_t place_of(const float *x, float number) {
    for (int64_t i = 0;; i += BLOCK) {
        int is_here = 0;
        for (int j = 0; j < BLOCK; j++) is_here |= x[i + j] == number;
        if (!is_here) continue;
        while (x[i] != number) i++;
        return i;
    }
}

/* 2^x for x <= 0 with a relative error of about 2e-7, but 0 for x < -125. As in vectors.h, 2^r for |r| <= 1 / 2 is a
 * polynomial, here the one of this degree whose greatest error is least. */
ALWAYS_INLINE vec power_of_two(vec x) {
    const vec rounding = splat(12582912.0f), shifted = x + rounding, r = x - (shifted - rounding);
    vec p = splat(1.3264727e-3f);
    p = p * r + splat(9.6715126e-3f);
    p = p * r + splat(5.5507337e-2f);
    p = p * r + splat(2.4022242e-1f);
    p = p * r + splat(6.9314698e-1f);
    p = p * r + splat(1.0f);
    return where(x >= splat(-125.0f), (vec)((ivec)p + ((ivec)shifted << 23)));
}

/* Probabilities from logits, which may stand in their place, and the mass of each block. A block all of whose `groups`
 * (NULL: that is not known) are less than `least` becomes zeros. */
CLONED static void weigh(const float *x, int64_t width, float top, float temperature, const float *groups, float least,
                         float *p, float *masses) {
    const vec factor = splat(1.44269504f / temperature), best = splat(top);
    for (int64_t i = 0; i < width; i += BLOCK) {
        vec powers[BLOCK / WIDTH] = {{0}}, mass = splat(0);
        int is_kept = !groups;
        for (int j = 0; groups && j < WIDTH; j++) is_kept |= groups[i / WIDTH + j] >= least;
        if (is_kept)
            for (int j = 0; j < BLOCK / WIDTH; j++) powers[j] = power_of_two((load(x + i + j * WIDTH) - best) * factor);
        for (int j = 0; j < BLOCK / WIDTH; j++) {
            store(p + i + j * WIDTH, powers[j]);
            mass += powers[j];
        }
        masses[i / BLOCK] = sum(mass);
    }
}

/* The mass of what is not less than `least`, block by block. */
CLONED static void sum_blocks(const float *p, int64_t width, float least, float *masses) {
    const vec bound = splat(least);
    for (int64_t i = 0; i < width; i += BLOCK) {
        vec mass = splat(0);
        for (int j = 0; j < BLOCK; j += WIDTH) mass += where(load(p + i + j) >= bound, load(p + i + j));
        masses[i / BLOCK] = sum(mass);
    }
}

/* What is not less than `least`, which is greater than 0. */
CLONED static portion at_least(const float *p, int64_t width, float least) {
    portion found = {0, 0};
    const vec bound = splat(least);
    ivec counts[CHAINS] = {{0}};
    for (int64_t i = 0; i < width;) {
        vec masses[CHAINS] = {{0}};
        for (const int64_t end = width < i + 16 * BLOCK ? width : i + 16 * BLOCK; i < end; i += CHAINS * WIDTH)
            for (int j = 0; j < CHAINS; j++) {
                const vec v = load(p + i + j * WIDTH);
                const ivec in = v >= bound;
                masses[j] += where(in, v);
                counts[j] -= in;
            }
        found.mass += sum(masses[0] + masses[1] + masses[2] + masses[3]);
    }
    for (int i = 0; i < CHAINS * WIDTH; i++) found.count += counts[i / WIDTH][i % WIDTH];
    return found;
}

/* Writes those from `low` up to `high`, without it, to `kept`, which may be `p`, then zeros up to a whole block. Returns
 * their number with these. */
CLONED static int64_t between(const float *p, int64_t width, float low, float high, float *kept) {
    int64_t found = 0;
    for (int64_t i = 0; i < width; i += BLOCK) {
        uint8_t is_in[BLOCK];
        for (int j = 0; j < BLOCK; j++) is_in[j] = (p[i + j] >= low) & (p[i + j] < high);
        uint64_t in = 0;
        for (int j = 0; j < BLOCK; j += 8) {
            uint64_t eight;
            memcpy(&eight, is_in + j, sizeof eight);
            in |= (eight * 0x0102040810204080 >> 56) << j; /* each eighth byte's bit */
        }
        for (; in; in &= in - 1) kept[found++] = p[i + __builtin_ctzll(in)];
    }
    while (found % BLOCK) kept[found++] = 0;
    return found;
}

static double sum_of(const float *masses, int64_t blocks) {
    double whole = 0;
    for (int64_t block = 0; block < blocks; block++) whole += masses[block];
    return whole;
}

/* Of two numbers that are not negative, the greater has the greater bits. */
typedef union {
    int32_t bits;
    float number;
} ordered;

static int is_enough(portion some, double mass, int64_t count) { return some.mass >= mass && some.count >= count; }

static float least_kept(const float *, int64_t, float, portion, double, int64_t, float *);

/* About what `least_kept` will find, by one block in so many; 0 where they do not tell. Small numbers are many, so what
 * is left out of the whole tells what is left out of these. */
static float estimate(const float *p, int64_t width, float floor, portion at_low, double mass, float *room) {
    int64_t taken = 0;
    for (int64_t i = 0; i < width; i += SAMPLED * BLOCK, taken += BLOCK) memcpy(room + taken, p + i, BLOCK * sizeof *p);
    const portion some = at_least(room, taken, floor);
    const double share = some.mass - (at_low.mass - mass) * (double)taken / (double)width;
    return share > 0 ? least_kept(room, taken, floor, some, share, 0, room + taken) : 0;
}

/* The greatest number such that those not less than it have so much mass and are so many; `floor` if none greater is.
 * `at_low` tells what is not less than `floor`, or more. `room` is for an eighth of the numbers. */
static float least_kept(const float *p, int64_t width, float floor, portion at_low, double mass, int64_t count,
                        float *room) {
    ordered low = {.number = floor}, high = {.number = nextafterf(1, 2)};
    portion at_high = {0, 0}, left_out = {0, 0};
    const float expected = mass > 0 && width >= LONG ? estimate(p, width, floor, at_low, mass, room) : 0;
    const float tries[] = {expected * 0.97f, expected * 1.03f};
    for (int i = 0; high.bits - low.bits > 1; i++) {
        if ((at_low.count - at_high.count) * SPARSE < width) {
            width = between(p, width, low.number, high.number, room);
            p = room;
            left_out = at_high;
        }
        ordered middle = {.bits = low.bits + (high.bits - low.bits) / 2};
        if (i < 2 && tries[i] > low.number && tries[i] < high.number) middle.number = tries[i];
        portion some = at_least(p, width, middle.number);
        some.mass += left_out.mass;
        some.count += left_out.count;
        if (is_enough(some, mass, count))
            low = middle, at_low = some;
        else
            high = middle, at_high = some;
    }
    return low.number;
}

/* The place at which the sum of what is not less than `least` passes `uniform` times the whole. */
static int64_t place_at(const float *p, const float *masses, int64_t width, float least, double uniform) {
    const double whole = sum_of(masses, width / BLOCK);
    double passed = 0;
    int64_t found = 0;
    for (int64_t block = 0; block < width / BLOCK; block++) {
        found = masses[block] > 0 ? block : found;
        if (passed + masses[block] > uniform * whole) break;
        passed += masses[block];
    }
    for (int64_t i = found * BLOCK, end = i + BLOCK; i < end; i++) {
        if (p[i] < least) continue;
        found = i;
        passed += p[i];
        if (passed > uniform * whole) break;
    }
    return found;
}

/* Probabilities from logits, whose greatest is `top`; returns the least that the filters keep. */
static float filter(const float *logits, int64_t width, float top, const sampling_line *line, const workplace *at) {
    const float temperature = (float)line->temperature, *p = at->row;
    const int64_t groups = whole_blocks(width / WIDTH);
    const int is_filtered = line->min_p > 0 || line->top_k, is_nucleus = line->top_p < 1;
    float least = fmaxf((float)line->min_p, FLT_MIN);
    portion kept = {0, width};
    for (int64_t i = width / WIDTH; i < groups; i++) at->groups[i] = -INFINITY;
    if (is_filtered) weigh(at->groups, groups, top, temperature, NULL, 0, at->groups, at->masses);
    /* As many groups as are to be kept have a number that is as great. */
    if (line->top_k) least = least_kept(at->groups, groups, least, kept, 0, line->top_k, at->room);
    weigh(logits, width, top, temperature, is_filtered ? at->groups : NULL, least, at->row, at->masses);
    if (is_filtered) kept = at_least(p, width, least);
    if (line->top_k) {
        if (kept.count * SPARSE < width) {
            width = between(p, width, least, 2, at->groups);
            p = at->groups;
        }
        least = least_kept(p, width, least, kept, 0, line->top_k, at->room);
        if (is_nucleus) kept = at_least(p, width, least);
    }
    if (is_nucleus) {
        if (!is_filtered) kept.mass = sum_of(at->masses, width / BLOCK);
        /* All that are less come to less than what is left out, though there were so many of them. */
        const float bound = (float)(0.99 * (1 - line->top_p) * kept.mass / (double)kept.count);
        least = least_kept(p, width, fmaxf(least, bound), kept, line->top_p * kept.mass, 0, at->room);
    }
    return least;
}

static int is_penalized(const sampling_line *line) {
    return line->repetition_penalty != 1 || line->presence_penalty != 0 || line->frequency_penalty != 0;
}

/* The repetition penalty is for what is in prompt or output, the others are for the latter. */
static void penalize(float *row, int64_t width, const sampling_line *line, uint32_t *times) {
    const int64_t first = line->repetition_penalty == 1 ? line->prompt_length : 0;
    for (int64_t i = first; i < line->length; i++)
        if (line->tokens[i] < width) times[line->tokens[i]] = 0;
    for (int64_t i = line->prompt_length; i < line->length; i++)
        if (line->tokens[i] < width) times[line->tokens[i]]++;
    for (int64_t i = first; i < line->length; i++) {
        const int32_t token = line->tokens[i];
        if (token >= width || times[token] == PENALIZED) continue;
        const float repetition = (float)line->repetition_penalty, logit = row[token];
        row[token] = (logit > 0 ? logit / repetition : logit * repetition) -
                     (float)line->frequency_penalty * (float)times[token] -
                     (times[token] ? (float)line->presence_penalty : 0);
        times[token] = PENALIZED;
    }
}

static int is_within(int64_t id, int64_t width) { return id >= 0 && id < width; }

static void keep_allowed(float *row, int64_t width, const sampling_line *line, float *room) {
    memcpy(room, row, (size_t)width * sizeof *row);
    for (int64_t i = 0; i < width; i++) row[i] = -INFINITY;
    for (int64_t i = 0; i < line->num_allowed; i++)
        if (is_within(line->ids[i], width)) row[line->ids[i]] = room[line->ids[i]];
}

/* In this order: allowed tokens, biases, end tokens before `min_tokens`, bad words, penalties. */
static void adjust(float *row, int64_t width, const sampling_line *line, const workplace *at) {
    const int64_t *ids = line->ids, produced = line->length - line->prompt_length;
    const int32_t *end = line->tokens + line->length;
    if (line->num_allowed) keep_allowed(row, width, line, (float *)at->times);
    ids += line->num_allowed;
    for (int64_t i = 0; i < line->num_biased; i++, ids++)
        if (is_within(*ids, width)) row[*ids] += line->biases[i];
    for (int64_t i = 0; i < line->num_ends; i++, ids++)
        if (produced < line->min_tokens && is_within(*ids, width)) row[*ids] = -INFINITY;
    for (int64_t i = 0; i < line->num_words; i++) {
        const int64_t before = *ids++ - 1;
        int64_t same = 0;
        while (same < before && before <= produced && ids[same] == end[same - before]) same++;
        ids += before;
        if (same == before && is_within(*ids, width)) row[*ids] = -INFINITY;
        ids++;
    }
    if (is_penalized(line)) penalize(row, width, line, at->times);
}

static int is_adjusted(const sampling_line *line) {
    return line->num_allowed || line->num_biased || line->num_words || is_penalized(line) ||
           line->length - line->prompt_length < line->min_tokens;
}

/* The token of a row, or one of the negative numbers above. */
static int64_t sample_row(const float *logits, int64_t width, const sampling_line *line, double uniform,
                          const workplace *at) {
    const int64_t padded = whole_blocks(width);
    if (width < padded || is_adjusted(line)) {
        memcpy(at->row, logits, (size_t)width * sizeof *logits);
        for (int64_t i = width; i < padded; i++) at->row[i] = -INFINITY;
        logits = at->row;
    }
    float top = greatest(logits, padded, at->groups);
    if (!isfinite(top)) return NOT_FINITE;
    if (is_adjusted(line)) {
        adjust(at->row, width, line, at);
        top = greatest(logits, padded, at->groups);
        if (top == -INFINITY) return NOTHING_LEFT;
        if (!isfinite(top)) return ADJUSTED_NOT_FINITE;
    }
    if (line->temperature == 0) return place_of(logits, top);
    const float least = filter(logits, padded, top, line, at);
    if (least > FLT_MIN) sum_blocks(at->row, padded, least, at->masses);
    return place_at(at->row, at->masses, padded, least, uniform);
}

int64_t tenure_has_sampling_layout(int64_t line, int64_t block) {
    return line == sizeof(sampling_line) && block == BLOCK;
}

/* The tokens of these slots, whose logits are `stride` numbers apart. Each of `threads` has `room` numbers of scratch: at
 * least 3 for each of the width and 6 blocks. */
void tenure_sample(const float *logits, int64_t stride, int64_t width, const sampling_line *lines, const int64_t *slots,
                   const double *uniforms, int64_t rows, float *scratch, int64_t room, int64_t threads, int64_t *tokens) {
    const int64_t padded = whole_blocks(width);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows; i++) {
        workplace at = {.row = scratch + omp_get_thread_num() * room};
        at.masses = at.row + padded;
        at.groups = at.masses + padded / BLOCK;
        at.room = at.groups + whole_blocks(padded / 8);
        at.times = (uint32_t *)(at.room + whole_blocks(padded / 8));
        tokens[i] = sample_row(logits + i * stride, width, &lines[slots[i]], uniforms[i], &at);
    }
}
