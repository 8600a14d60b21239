typedef int sl_placeholder_vec_avx2;
