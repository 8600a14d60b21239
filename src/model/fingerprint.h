/* What makes two model files the same model: XXH3-128 over hyper-parameters and tensors, in the order in which they are
 * loaded, so that computing it costs no reading of its own. Private to this folder. */
#ifndef SL_FINGERPRINT_H
#define SL_FINGERPRINT_H

#include "model/weights.h"

typedef struct sl_fingerprint sl_fingerprint;

sl_status sl_fingerprint_create(const sl_hparams *hp, sl_budget *budget, sl_fingerprint **out, sl_err *err) SL_CHECK;
void sl_fingerprint_destroy(sl_fingerprint *fingerprint, sl_budget *budget);
void sl_fingerprint_add_tensor(sl_fingerprint *fingerprint, const sl_gguf_tensor *tensor); /* name, type, shape */
void sl_fingerprint_add(sl_fingerprint *fingerprint, const void *data, size_t bytes);
void sl_fingerprint_get(const sl_fingerprint *fingerprint, uint64_t out[2]); /* low half, high half */

#endif
