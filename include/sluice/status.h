/* Outcome of every fallible call, and where its one error text is kept. */
#ifndef SLUICE_STATUS_H
#define SLUICE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are the command line's exit codes. */
typedef enum sl_status {
    SL_OK = 0,
    SL_FAILED = 1,     /* I/O, memory, arithmetic: the work could not be finished */
    SL_USAGE = 2,      /* an argument that can never be right */
    SL_REFUSED = 3,    /* refused before work: plan, budget, identity, lock */
    SL_DAMAGED = 4,    /* a damaged or foreign file */
    SL_CANCELLED = 130 /* the caller asked to stop */
} sl_status;

/* Filled in by the function that finds the fault; owned by caller; one line, no newline. */
typedef struct sl_err {
    sl_status status;
    char text[512];
} sl_err;

#ifdef __cplusplus
}
#endif
#endif
