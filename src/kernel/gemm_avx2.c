typedef int sl_placeholder_gemm_avx2;
