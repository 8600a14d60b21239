/* Linux: raw asynchronous reads by io_uring. Owns: a ring, an eventfd that wakes it, the registration of memory and
 * file. Refuses: kernels before 5.6, where a ring could drop completions or did not know plain reads.
 * Waiting is ppoll(2) on the ring's descriptor and the eventfd: a wake then needs no request in the ring, and
 * whatever another call left unsubmitted cannot keep a wait from waiting.
 * Facts: io_uring_setup(2), io_uring_enter(2), io_uring_register(2), eventfd(2). */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "platform/linux_impl.h"

enum { MOST_STARTED = 64 };                            /* by one call */
static const uint64_t PIECE_BYTES = (uint64_t)1 << 30; /* the most that one registered buffer may hold */
static const size_t MOST_READ_BYTES = (size_t)1 << 30; /* what is longer comes back short */
static const uint64_t TAG_NOTHING = (uint64_t)1 << 63; /* of a read that was withdrawn */

struct sl_aio {
    struct io_uring ring;
    int event_fd;
    const sl_file *file; /* borrowed: another may be attached to it later */
    bool has_fixed_file;
    uint8_t *memory; /* registered in pieces; NULL: not */
    size_t memory_bytes;
};

/* 0 or -errno. One buffer per GiB: the kernel takes no longer ones. */
static int register_memory(sl_aio *aio, const sl_aio_options *options)
{
    size_t n = (size_t)((options->memory_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
    struct iovec *pieces = calloc(n, sizeof *pieces);
    if (!pieces)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        uint64_t off = i * PIECE_BYTES;
        uint64_t left = options->memory_bytes - off;
        pieces[i].iov_base = options->memory + off;
        pieces[i].iov_len = (size_t)(left < PIECE_BYTES ? left : PIECE_BYTES);
    }
    int failed = io_uring_register_buffers(&aio->ring, pieces, (unsigned)n);
    free(pieces);
    if (failed == 0) {
        aio->memory = options->memory;
        aio->memory_bytes = options->memory_bytes;
    }
    return failed;
}

/* 0 or -errno: nothing goes through the ring and comes back. A filter of system calls may let a ring be made and forbid
 * its use. */
static int try_ring(struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    io_uring_prep_nop(io_uring_get_sqe(ring));
    int submitted = io_uring_submit_and_wait(ring, 1);
    if (submitted != 1)
        return submitted < 0 ? submitted : -EAGAIN;
    int failed = io_uring_peek_cqe(ring, &cqe);
    if (failed == 0) {
        failed = cqe->res;
        io_uring_cqe_seen(ring, cqe);
    }
    return failed;
}

int sl_uring_open(const sl_vfs *vfs, const sl_aio_options *options, sl_aio **out, int *register_refused)
{
    (void)vfs;
    *out = NULL;
    *register_refused = 0;
    sl_aio *aio = calloc(1, sizeof *aio);
    if (!aio)
        return -ENOMEM;
    aio->file = options->file;
    struct io_uring_params params = {0};
    /* Neither polling nor a kernel thread that spins: waiting for the disk burns no processor. (Computing threads look
     * for their next run for a few microseconds, base/thread.h, but not for reads.) */
    int failed = io_uring_queue_init_params((unsigned)options->depth, &aio->ring, &params);
    if (failed != 0) {
        free(aio);
        return failed;
    }
    aio->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    unsigned needed = IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS;
    failed = aio->event_fd < 0 ? -errno : (params.features & needed) != needed ? -ENOSYS : try_ring(&aio->ring);
    if (failed != 0) {
        sl_uring_close(aio);
        return failed;
    }
    /* A file that is looked up anew costs next to nothing: nobody need know. */
    aio->has_fixed_file = io_uring_register_files(&aio->ring, &options->file->fd, 1) == 0;
    if (options->memory_bytes > 0)
        *register_refused = -register_memory(aio, options);
    *out = aio;
    return 0;
}

void sl_uring_close(sl_aio *aio)
{
    if (!aio)
        return;
    /* A ring is taken apart some time after its descriptor is closed. What it holds of the user's (locked memory, the
     * file's space) must be free when this returns: the next queue may need it. */
    if (aio->memory)
        (void)io_uring_unregister_buffers(&aio->ring);
    if (aio->has_fixed_file)
        (void)io_uring_unregister_files(&aio->ring);
    io_uring_queue_exit(&aio->ring);
    if (aio->event_fd >= 0)
        close(aio->event_fd);
    free(aio);
}

static void prepare(const sl_aio *aio, struct io_uring_sqe *sqe, const sl_aio_read *read)
{
    assert(read->tag < TAG_NOTHING);
    uint64_t off = read->off;
    int file = sl_linux_fd(aio->file, &off);
    bool is_registered = aio->has_fixed_file && file == aio->file->fd;
    file = is_registered ? 0 : file;
    unsigned bytes = (unsigned)(read->bytes < MOST_READ_BYTES ? read->bytes : MOST_READ_BYTES);
    size_t at = aio->memory ? (size_t)((uint8_t *)read->buf - aio->memory) : 0;
    bool is_fixed = aio->memory && (uint8_t *)read->buf >= aio->memory && at < aio->memory_bytes &&
                    at / PIECE_BYTES == (at + bytes - 1) / PIECE_BYTES;
    if (is_fixed)
        io_uring_prep_read_fixed(sqe, file, read->buf, bytes, off, (int)(at / PIECE_BYTES));
    else
        io_uring_prep_read(sqe, file, read->buf, bytes, off);
    if (is_registered)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, read->tag);
}

int sl_uring_start(sl_aio *aio, const sl_aio_read *reads, size_t n)
{
    struct io_uring_sqe *sqes[MOST_STARTED];
    /* What an earlier call withdrew goes first, so that there is never more of it than one call's. */
    if (io_uring_sq_ready(&aio->ring) > 0) {
        int submitted = io_uring_submit(&aio->ring);
        if (submitted < 0 || io_uring_sq_ready(&aio->ring) > 0)
            return submitted < 0 ? submitted : -EAGAIN;
    }
    size_t n_ready = 0;
    while (n_ready < n && n_ready < MOST_STARTED && (sqes[n_ready] = io_uring_get_sqe(&aio->ring)) != NULL) {
        prepare(aio, sqes[n_ready], &reads[n_ready]);
        n_ready++;
    }
    int submitted = io_uring_submit(&aio->ring);
    size_t n_left = io_uring_sq_ready(&aio->ring);
    assert(n_left <= n_ready);
    /* The kernel may take fewer, from the first on. The others stand in the ring and would be read some time later,
     * when the caller may long have other plans for the buffer: nothing is put in their place. */
    for (size_t i = n_ready - n_left; i < n_ready; i++) {
        io_uring_prep_nop(sqes[i]);
        io_uring_sqe_set_data64(sqes[i], TAG_NOTHING);
    }
    if (n_ready > n_left || n == 0)
        return (int)(n_ready - n_left);
    return submitted < 0 ? submitted : -EAGAIN;
}

static size_t reap(sl_aio *aio, sl_aio_done *done, size_t most)
{
    struct io_uring_cqe *cqe;
    size_t n = 0;
    while (n < most && io_uring_peek_cqe(&aio->ring, &cqe) == 0) {
        uint64_t tag = io_uring_cqe_get_data64(cqe);
        if (tag != TAG_NOTHING)
            done[n++] = (sl_aio_done){tag, cqe->res};
        io_uring_cqe_seen(&aio->ring, cqe);
    }
    return n;
}

int sl_uring_wait(sl_aio *aio, double timeout_s, sl_aio_done *done, size_t most)
{
    enum { LONGEST_S = 1 << 30 };
    size_t n = reap(aio, done, most);
    if (n > 0)
        return (int)n;
    double whole = timeout_s < LONGEST_S ? timeout_s : LONGEST_S;
    struct timespec left = {0, 0};
    if (timeout_s > 0) {
        left.tv_sec = (time_t)whole;
        left.tv_nsec = (long)((whole - (double)left.tv_sec) * 1e9);
    }
    struct pollfd fds[2] = {{aio->ring.ring_fd, POLLIN, 0}, {aio->event_fd, POLLIN, 0}};
    int failed = ppoll(fds, 2, timeout_s < 0 ? NULL : &left, NULL) < 0 ? errno : 0;
    uint64_t n_wakes;
    if (failed == 0 && fds[1].revents != 0 && read(aio->event_fd, &n_wakes, sizeof n_wakes) < 0 && errno != EAGAIN)
        failed = errno;
    n = reap(aio, done, most);
    return n > 0 ? (int)n : -failed;
}

void sl_uring_wake(sl_aio *aio)
{
    uint64_t one = 1;
    ssize_t written;
    /* EAGAIN: the counter is full, so it wakes anyhow. */
    do
        written = write(aio->event_fd, &one, sizeof one);
    while (written < 0 && errno == EINTR);
}
