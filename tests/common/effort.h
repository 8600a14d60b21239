/* How much a random test repeats: sanitizers cost ten times the time, so their builds take a share. */
#ifndef EFFORT_H
#define EFFORT_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EFFORT_IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define EFFORT_IS_SANITIZED 1
#endif
#endif
#ifndef EFFORT_IS_SANITIZED
#define EFFORT_IS_SANITIZED 0
#endif

/* `plain` rounds, a sixth of them (one at least) under a sanitizer. */
#define EFFORT(plain) (EFFORT_IS_SANITIZED ? ((plain) + 5) / 6 : (plain))

#endif
