/* How much a random test repeats: sanitizers and emulated processors (SLUICE_EMULATED, set by the build) cost ten times
 * the time and more, so their builds take a share. */
#ifndef EFFORT_H
#define EFFORT_H

#if defined(SLUICE_EMULATED) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EFFORT_IS_SMALL 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define EFFORT_IS_SMALL 1
#endif
#endif
#ifndef EFFORT_IS_SMALL
#define EFFORT_IS_SMALL 0
#endif

/* The thread sanitizer costs more again, and one round in a thread's company shows what many do. */
#if defined(__SANITIZE_THREAD__)
#define EFFORT_IS_TINY 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EFFORT_IS_TINY 1
#endif
#endif
#ifndef EFFORT_IS_TINY
#define EFFORT_IS_TINY 0
#endif

/* `plain` rounds, a sixth of them (one at least) where effort is small. */
#define EFFORT(plain) (EFFORT_IS_SMALL ? ((plain) + 5) / 6 : (plain))

#endif
