typedef int sl_placeholder_math64;
